# SPDX-License-Identifier: Apache-2.0
"""The cloud of a chaos run: real agents, their source, and readers.

All processes started here end with the block of :meth:`World.living`.

"""

import contextlib
import pathlib
import random
import threading
from collections.abc import Iterator
from collections.abc import Sequence

from tests.chaos import chaos_hosts
from tests.chaos import clocks
from tests.chaos import guest_disk
from tests.chaos import guests
from tests.chaos import hostile_source
from tests.chaos import readers
from tests.chaos import tally
from tests.chaos import watch
from tests.fakes import bad_network
from tests.fakes import hosts
from tests.fakes import http_server
from tests.fakes import next_version
from tests.lab import guest_image
from tests.lab import local

MIB = 1 << 20
IMAGE_BYTES = (24 * MIB + 12345, 16 * MIB)
SPARE_BYTES = 6 * MIB + 777
SETTINGS = (
    {"keep_images": "host", "cache_limit_bytes": 128 * MIB, "fill_rate_limit_mbit": 4.0},
    {"keep_images": "none", "cache_limit_bytes": 12 * MIB},  # chunks come and go all the time
    {"keep_images": "host", "cache_limit_bytes": 32 * MIB},  # one image has no space
    {"keep_images": "none", "cache_limit_bytes": 24 * MIB},
    {"keep_images": "cloud", "cache_limit_bytes": 64 * MIB},
)
"""A seed has one of them."""


class World:
    """A cloud with faults, and its readers; see :class:`actions.World`.

    :param guest_count: number of guests, distributed over the hosts
    """

    def __init__(
        self, folder: pathlib.Path, seed: int, names: Sequence[str], guest_count: int = 0
    ) -> None:
        self.folder, self.seed = folder, seed
        self.names = names
        self.truth = folder / "truth"
        self.hosts: dict[str, chaos_hosts.Host] = {}
        self.readers: dict[str, list[readers.Reader | guests.Guest]] = {name: [] for name in names}
        self.next_tree = folder / "next"
        self.aside: list[threading.Thread] = []
        self.tally = tally.Tally()
        self.image_ids: list[str] = []
        self.spare_id = ""
        self.watch = watch.Watch(names)
        self.found = self.watch.found
        self._ring_file = folder / "ring.json"
        self._guest_count = guest_count
        self._guest_image_id = ""
        self._guest_sums: list[str] = []
        self._epoch = self._made_readers = 0
        self._rng = random.Random(f"world/{seed}")

    @contextlib.contextmanager
    def living(self) -> Iterator[None]:
        """Run all of it until the block ends."""
        files = self._make_images()
        next_version.make(self.next_tree)
        self._clock_library = clocks.build(self.folder)
        with contextlib.ExitStack() as stack:
            self.server = stack.enter_context(http_server.serve(files))
            self.source = hostile_source.HostileSource(self.server)
            stack.callback(self.source.recover)
            for name in self.names:
                self.hosts[name] = self._make_host(name, stack)
            self.write_ring(dict.fromkeys(self.names, 100))
            for host in self.hosts.values():
                stack.enter_context(host.living())
            stack.callback(self._kill_readers)
            for host in self.hosts.values():
                for image_id in self.image_ids:
                    host.ask("attach-image", image_id=image_id)
                for number in range(len(self.image_ids) * 2):
                    self.readers[host.name].append(self._make_reader(host, number))
            for number in range(self._guest_count):
                name = self.names[number % len(self.names)]
                self.readers[name].append(self._make_guest(self.hosts[name]))
            yield

    def _make_images(self) -> dict[str, bytes]:
        images = local.ImageFolder(self.folder / "source")
        self.truth.mkdir()
        for number, size in enumerate((*IMAGE_BYTES, SPARE_BYTES)):
            data = local.random_bytes(size, self.seed * 10 + number, zero_share=0.1)
            self.spare_id = images.add(data)
            (self.truth / self.spare_id).write_bytes(data)
            self.image_ids.append(self.spare_id)
        self.image_ids.pop()
        if self._guest_count:
            self._guest_image_id = self._make_guest_image(images)
            self.image_ids.append(self._guest_image_id)
        return {path.name: path.read_bytes() for path in images.folder.iterdir()}

    def _make_guest_image(self, images: local.ImageFolder) -> str:
        folder = self.folder / "guest-disk"
        folder.mkdir()
        data = guest_disk.make(guest_image.ensure(), folder, self.seed).read_bytes()
        self._guest_sums = guest_disk.sums(data)
        image_id = images.add(data)
        (self.truth / image_id).write_bytes(data)
        return image_id

    def _make_host(self, name: str, stack: contextlib.ExitStack) -> chaos_hosts.Host:
        folder = self.folder / name
        folder.mkdir()
        port = local.unused_port()
        relay = stack.enter_context(bad_network.relaying(port, self._rng.randrange(1000), 0, 0))
        own = {
            "sources": "http",
            "ring_file": self._ring_file,
            **SETTINGS[self.seed % len(SETTINGS)],
        }
        changes = {
            "acstor_agent": own,
            "source_http": {"url": self.server.url, "timeout_s": 2.0},
        }
        clock = clocks.WallClock(folder / "clock", self._clock_library)
        return chaos_hosts.Host(name, folder, port, relay, clock, changes)

    def _make_reader(self, host: chaos_hosts.Host, number: int) -> readers.Reader:
        self._made_readers += 1
        way = list(readers.WAYS)[number % len(readers.WAYS)]
        image_id = self.image_ids[number % len(self.image_ids)]
        seed, own = self.seed + self._made_readers, host.folder / f"reader-{self._made_readers}"
        return readers.Reader(way, self.truth / image_id, host.image_path(image_id), seed, own)

    def _make_guest(self, host: chaos_hosts.Host) -> guests.Guest:
        self._made_readers += 1
        own = host.folder / f"guest-{self._made_readers}"
        return guests.Guest(self._guest_sums, host.image_path(self._guest_image_id), own)

    def end_readers(self) -> None:
        """Kill all readers, which must end."""
        for host, some in self.readers.items():
            for reader in some:
                self.watch.collect_faults(host, reader)
                hosts.kill(reader.pid)
                if not reader.ended_in(watch.DIES_S):
                    self.found(f"{host}: {reader.name} does not end")
                self.tally.add(reader)

    def _kill_readers(self) -> None:
        for reader in (reader for some in self.readers.values() for reader in some):
            hosts.kill(reader.pid)

    def write_ring(self, vnodes: dict[str, int]) -> None:
        """Publish a ring table."""
        self._epoch += 1
        ports = {name: self.hosts[name].relay.port for name in vnodes}
        hosts.write_ring(self._ring_file, ports, self._epoch, vnodes)

    def replace_reader(self, host: str, number: int) -> None:
        """Kill a reader, which must end, and start another one."""
        old, agent = self.readers[host][number], self.hosts[host]
        self.tally.add(old)
        hosts.kill(old.pid)
        self.watch.killed(host, old)
        is_guest = isinstance(old, guests.Guest)
        new = self._make_guest(agent) if is_guest else self._make_reader(agent, number)
        self.readers[host][number] = new

    def look(self) -> None:
        """Check the guarantees."""
        self.watch.look(self.hosts, self.readers)

    def tidy(self) -> None:
        """Drop the counts: a run lasts for hours."""
        self.source.tidy()
        for host in self.hosts.values():
            host.relay.tidy()
