# SPDX-License-Identifier: Apache-2.0
"""Several hosts in one process and in virtual time, under thousands of faults.

    python -m tests.chaos.virtual --seeds 0-2000
    python -m tests.chaos.virtual --seeds 17 --verbose

A seed decides the hosts, their options, the guests' reads, and the faults with their times.
Invariants: each read ends with the right bytes, none with an error (all bytes may still arrive),
all of them within a bound after the last repair; all work of a host ends; and without faults (every
tenth seed) the source is read about once.  The parts of a host are the real ones
(``virtual_hosts``), and a minute of theirs takes about a second.
"""

import argparse
import collections
import contextlib
import logging
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import TypeVar

import trio
import trio.testing

from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.images import pin_record
from acstor_agent.sources import base
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from tests.chaos import virtual_hosts
from tests.fakes import memory_network
from tests.fakes import one_host

KIB = 1024
CHUNK = 16 * KIB
STORM_S = 40.0
ENDS_S = 240.0
"""Limit of reads after the last repair; a liar's backoff is over a minute."""
EMPTY_S = 300.0
CPU_S = 120
"""Limit of processor time of a seed: a longer run is an endless loop."""
ONCE = 1.15
"""Limit of source reads per chunk without faults: hedges cost a little."""
CALM_EVERY = 10
HURRY_S = 60.0
"""Longest deadline of an image that is to be fully cached."""
CLOCK_OFF_S = (3600.0, 40 * 86400.0, 25 * 365 * 86400.0)
"""Largest clock errors."""
ROOM_BYTES = 4 << 20
"""Caches of this size hold all images."""
DELETED_ROUNDS = 6


class Broken(Exception):
    """A guarantee does not hold."""


Fault = Callable[["World"], Callable[[], object] | None]
"""Injects a fault, and returns the function that undoes it."""
W = TypeVar("W", bound="World")


class World:
    """A run: its hosts, guests, and actions.

    :param faults: possible faults; one that is listed twice is twice as likely
    :param hosts: their number; None: the seed decides
    """

    def __init__(
        self, seed: int, folder: pathlib.Path, faults: Sequence[Fault], hosts: int | None = None
    ) -> None:
        self._faults = faults
        self.rng = random.Random(f"virtual/{seed}")
        self.is_calm = seed % CALM_EVERY == 0
        self.folder = folder
        count = hosts or self.rng.randint(2, 5)
        self.names = [f"h{number}" for number in range(1, count + 1)]
        self.addresses = {name: f"10.0.0.{n}:7201" for n, name in enumerate(self.names, 1)}
        self.settings = virtual_hosts.Settings(self.rng, self.is_calm)
        self.images = self._make_images(seed)
        self.sources = [
            virtual_hosts.Source(
                f"source {number}", self._blobs(), random.Random(f"{number}/{seed}")
            )
            for number in range(1, self.rng.randint(1, 2) + 1)
        ]
        self.network = memory_network.Network(random.Random(f"network/{seed}"))
        self.hosts: dict[str, virtual_hosts.Host] = {}
        self._faults_a_second = self.rng.choice((0.5, 1.5, 4.0))
        self.reads = 0
        self.last_wait = ""
        self.is_over = False
        self.clock = trio.testing.MockClock(autojump_threshold=0)
        self.trace: list[str] = []
        self.done: collections.Counter[str] = collections.Counter()
        self.clock_off_s: dict[str, float] = {}
        self._scopes: dict[str, set[trio.CancelScope]] = {name: set() for name in self.names}
        self._stops = {name: trio.Event() for name in self.names}
        self._wiped: set[str] = set()
        self._started = trio.Event()
        self._undo: list[Callable[[], object]] = []
        self._table = self._new_table(1, self.names)

    def _make_images(self, seed: int) -> dict[ids.ImageId, bytes]:
        data = one_host.image_bytes(self.rng.randint(20, 100) * CHUNK + 777, seed)
        other = data[: 10 * CHUNK] + bytes(5 * CHUNK) + one_host.image_bytes(30 * CHUNK, seed + 1)
        return {one_host.IMAGE: data, one_host.OTHER: other}

    def _blobs(self) -> dict[base.Blob, bytes]:
        found = {}
        for image_id, data in self.images.items():
            found[base.Blob(image_id, base.BlobKind.IMAGE)] = data
            the_map = one_host.map_of(data, image_id, CHUNK)
            found[base.Blob(image_id, base.BlobKind.CHUNK_MAP)] = the_map
        return found

    def note(self, what: str) -> None:
        """Record an action."""
        self.trace.append(f"{trio.current_time():9.3f} {what}")

    # Hosts

    async def live(self, name: str) -> None:
        """Run a host, and restart it after a kill."""
        lives = 0
        while True:
            lives += 1
            rng = random.Random(f"{name}/{lives}/{self.rng.random()}")

            def make(nursery: trio.Nursery, rng: random.Random = rng) -> virtual_hosts.Host:
                return virtual_hosts.Host(
                    name,
                    self.addresses[name],
                    self.folder / name,
                    nursery,
                    sources=self.sources,
                    settings=self.settings,
                    rng=rng,
                )

            async with virtual_hosts.running(self.network, make) as host:
                self.give_table(host)
                for image_id in self.images:
                    host.uses.image_opened(image_id)
                self.hosts[name] = host
                self._started.set()
                self._started = trio.Event()
                await self._stops[name].wait()
                self._stops[name] = trio.Event()
                del self.hosts[name]
                for scope in list(self._scopes[name]):
                    scope.cancel()
                await trio.lowlevel.checkpoint()
            if name in self._wiped:
                self._wiped.discard(name)
                shutil.rmtree(self.folder / name / "cache")
            await self.stay_down(name)

    async def stay_down(self, name: str) -> None:
        """Wait until a killed host restarts."""
        await trio.sleep(0.0 if self.is_over else self.rng.random() * 5)

    def victim(self) -> str:
        """Return the host of the next fault of a process or disk."""
        return self.rng.choice(self.names)

    def give_table(self, host: virtual_hosts.Host) -> None:
        """Give a host the table that most hosts have."""
        if host.rings.ring.epoch < self._table.epoch:
            host.rings.set_operator_table(hash_ring.encode(self._table))

    def _new_table(self, epoch: int, names: Sequence[str]) -> hash_ring.Ring:
        chosen = [
            hash_ring.RingHost(name, self.addresses[name], self.rng.choice((10, 50, 100)))
            for name in names
        ]
        return hash_ring.Ring(epoch, tuple(chosen))

    # Guests

    async def guest(self, name: str, number: int) -> None:
        """Read and compare until the run is over; repeat a read after a kill."""
        rng = random.Random(f"guest/{name}/{number}/{self.rng.random()}")
        stream = requests.Stream(requests.Klass.GUEST, f"{name}/{number}")
        self.network.be(name)
        offset = 0
        while not self.is_over:
            image_id = rng.choice(list(self.images))
            size, length = len(self.images[image_id]), rng.choice((4, 16, 64, 200)) * KIB
            if rng.random() < 0.6 or offset >= size:
                offset = rng.randrange(size)
            while not await self._read_once(name, stream, image_id, offset, length):
                pass
            offset += length
            await trio.sleep(rng.expovariate(2.0))

    async def _read_once(
        self, name: str, stream: requests.Stream, image_id: ids.ImageId, offset: int, length: int
    ) -> bool:
        """Read; return whether there was a response: the host may be killed meanwhile."""
        host = self.hosts.get(name)
        if host is None:
            await self._started.wait()
            return False
        with trio.CancelScope() as scope:
            self._scopes[name].add(scope)
            try:
                image = await host.opened.get_mirror(image_id, stream)
                got = await image.read_at(offset, length, stream)
                if got != self.images[image_id][offset : offset + length]:
                    raise Broken(f"{name}: wrong bytes: {length} at {offset} of {image_id}")
            except errors.AcstorError as e:
                raise Broken(f"{name}: {length} bytes at {offset} of {image_id}: {e!r}") from e
            except trio.Cancelled:
                self.last_wait = self._waits()
                raise
            finally:
                self._scopes[name].discard(scope)
            self.reads += 1
            return True
        return False

    # Faults

    async def break_things(self) -> None:
        """Inject one fault after the other, and undo most of them after a while."""
        end_s = trio.current_time() + STORM_S
        async with trio.open_nursery() as nursery:
            while trio.current_time() < end_s:
                await trio.sleep(self.rng.expovariate(self._faults_a_second))
                undo = self.cause_fault()
                if undo is not None:
                    nursery.start_soon(self._undo_fault_later, undo, self.rng.random() * 8)
            nursery.cancel_scope.cancel()

    def cause_fault(self) -> Callable[[], object] | None:
        """Cause a fault; return the function that undoes it, if one is needed."""
        fault = self.rng.choice(self._faults)
        self.done[fault.__name__] += 1
        undo = fault(self)
        self._must_be_due_in_time()
        if undo is not None:
            self._undo.append(undo)
        return undo

    async def _undo_fault_later(self, undo: Callable[[], object], after_s: float) -> None:
        await trio.sleep(after_s)
        self._undo_fault(undo)

    def _undo_fault(self, undo: Callable[[], object]) -> None:
        if undo in self._undo:
            self._undo.remove(undo)
            undo()

    def undo_all_faults(self) -> None:
        """Undo every fault; all hosts get one table."""
        for undo in list(self._undo):
            self._undo_fault(undo)
        self._table = self._new_table(self._table.epoch + 1, self.names)
        for host in self.hosts.values():
            self.give_table(host)
        self.note("all is mended")

    def kill(self, name: str = "") -> None:
        """Kill a host; it restarts."""
        name = name or self.victim()
        self.note(f"kill {name}")
        self._stops[name].set()

    def break_source(self) -> Callable[[], object] | None:
        """Make a source fail in one way."""
        source = self.rng.choice(self.sources)
        if source.way:
            return None
        ways = ("hangs", "fails", "flaps", "refuses", "gone", "lies", "slow")
        source.break_(self.rng.choice(ways))
        self.note(f"{source.location}: {source.way}")
        return lambda: (self.note(f"{source.location} is well"), source.break_(""))

    def silence(self, name: str = "") -> Callable[[], object]:
        """Drop all messages between a host and one other, or all."""
        name = name or self.rng.choice(self.names)
        others = [other for other in self.names if other != name]
        chosen = others if self.rng.random() < 0.5 else [self.rng.choice(others)]
        self.note(f"silence between {name} and {', '.join(chosen)}")
        for other in chosen:
            self.network.silence(name, other, True)

        def end() -> None:
            self.note(f"no silence between {name} and {', '.join(chosen)}")
            for other in chosen:
                self.network.silence(name, other, False)

        return end

    def break_links(self, name: str = "") -> None:
        """Break all connections of a host."""
        name = name or self.rng.choice(self.names)
        self.note(f"connections of {name} break")
        self.network.break_all(name)

    def slow_links(self) -> Callable[[], object]:
        """Delay messages to a host."""
        name = self.rng.choice(self.names)
        delay_s, bytes_s = self.rng.choice(((0.4, 100e6), (0.001, 60e3), (1.5, 1e6)))
        ways = [self.network.ways[name, other] for other in self.names if other != name]
        self.note(f"{name} is slow: {delay_s} s, {bytes_s} bytes/s")
        for way in ways:
            way.delay_s, way.bytes_s = delay_s, bytes_s

        def end() -> None:
            self.note(f"{name} is fast")
            for way in ways:
                way.delay_s, way.bytes_s = 0.0005, 100e6

        return end

    def lie(self) -> Callable[[], object] | None:
        """Let a host send wrong bytes to others."""
        name = self.rng.choice(self.names)
        if name not in self.hosts:
            return None
        server = self.hosts[name].server
        server.is_lying = True
        self.note(f"{name} lies")
        return lambda: setattr(server, "is_lying", False)

    def damage(self, name: str = "") -> None:
        """Damage or delete files of a cache."""
        name = name or self.victim()
        slabs = sorted((self.folder / name / "cache").glob("slab-*"))
        if not slabs:
            return
        slab = self.rng.choice(slabs)
        if self.rng.random() < 0.5:
            self.note(f"{name}: {slab.name} is deleted")
            slab.unlink()
            return
        self.note(f"{name}: {slab.name} rots")
        with slab.open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            for _ in range(50):
                os.pwrite(file.fileno(), self.rng.randbytes(1), self.rng.randrange(max(1, size)))

    def wipe(self, name: str) -> None:
        """Kill a host that restarts with an empty cache."""
        self.note(f"kill {name}; its cache is lost")
        self._wiped.add(name)
        self._stops[name].set()

    def lose_map(self) -> None:
        """Kill a host whose chunk maps are lost or damaged before it restarts."""
        name = self.victim()
        maps = sorted((self.folder / name / "maps").glob("*.acmap"))
        if not maps:
            return
        lost = self.rng.choice(maps)
        self.note(f"kill {name}; {lost.name} is lost")
        self._stops[name].set()
        if self.rng.random() < 0.5:
            lost.unlink()
        else:
            lost.write_bytes(lost.read_bytes()[:-1] + b"!")

    def remap(self) -> None:
        """Publish another table; some hosts get it, others later or never."""
        names = [name for name in self.names if self.rng.random() < 0.9] or self.names
        self._table = self._new_table(self._table.epoch + 1, names)
        reported = [host for host in self.hosts.values() if self.rng.random() < 0.7]
        self.note(f"table {self._table.epoch} of {names} for {[host.name for host in reported]}")
        for host in reported:
            self.give_table(host)

    def set_clock(self) -> Callable[[], object]:
        """Set the wall clock of a host, ahead or back."""
        name = self.rng.choice(self.names)
        off_s = self.rng.choice((-1, 1)) * self.rng.random() * self.rng.choice(CLOCK_OFF_S)
        self.note(f"the clock of {name} is off by {off_s:.0f} s")
        self.clock_off_s[name] = off_s

        def end() -> None:
            self.note(f"the clock of {name} is right")
            self.clock_off_s.pop(name, None)

        return end

    def hydrate(self) -> None:
        """Request from a host that an image be fully cached by a deadline on its clock."""
        host = self.hosts.get(self.rng.choice(self.names))
        if host is not None and self.settings.is_keeping:
            image_id, within_s = self.rng.choice(list(self.images)), self.rng.random() * HURRY_S
            self.note(f"{host.name}: {image_id} is to be whole in {within_s:.0f} s")
            host.begin(self._hydrate, host, image_id, within_s)

    async def _hydrate(
        self, host: virtual_hosts.Host, image_id: ids.ImageId, within_s: float
    ) -> None:
        self.network.be(host.name)
        try:
            await host.hydration.set_fill_mode(image_id, pin_record.FillMode.URGENT, within_s)
        except errors.Unusable as e:  # it has no space
            self.note(f"{host.name}: {e}")
            return

    def _must_be_due_in_time(self) -> None:
        """Check that no image is due later than requested, however clocks were set since."""
        for host in self.hosts.values():
            for image_id in self.images:
                known = host.hydration.status.status_of(image_id) or {"due_in_s": None}
                if (known["due_in_s"] or 0.0) > HURRY_S:
                    raise Broken(f"{host.name}: due in {HURRY_S:g} s at most, it says {known}")

    # The run

    def conditions(self) -> contextlib.AbstractContextManager[object]:
        """Return the block in which faults of single hosts have an effect."""
        return virtual_hosts.wall_clocks(self.clock_off_s)

    async def start_all(self, nursery: trio.Nursery) -> None:
        """Start all hosts, with all images attached: they were opened before."""
        for name in self.names:
            nursery.start_soon(self.live, name)
        while len(self.hosts) < len(self.names):
            await self._started.wait()
        for host in self.hosts.values():
            self.network.be(host.name)
            for image_id in self.images:
                await host.images.attach_image(image_id)

    async def run(self) -> None:
        """Do the whole run.

        :raises Broken: a guarantee does not hold
        """
        async with trio.open_nursery() as nursery:
            await self.start_all(nursery)
            try:
                async with trio.open_nursery() as guests:
                    for name in self.names:
                        for number in range(self.rng.randint(1, 3)):
                            guests.start_soon(self.guest, name, number)
                    if self.is_calm:
                        await trio.sleep(STORM_S)
                    else:
                        await self.break_things()
                    self.undo_all_faults()
                    self.is_over = True
                    guests.start_soon(self._must_end, guests.cancel_scope)
            finally:
                self.note("the guests have ended")
            await self._read_all()
            await self._must_be_empty()
            self._must_be_foreseen()
            self._must_be_read_once()
            if self.settings.is_keeping and self.settings.cache_bytes >= ROOM_BYTES:
                await self._outlive_the_sources()
            nursery.cancel_scope.cancel()

    async def _must_end(self, scope: trio.CancelScope) -> None:
        with trio.move_on_after(ENDS_S):
            while any(self._scopes.values()):  # noqa: ASYNC110 - no event announces it
                await trio.sleep(0.5)
            return
        raise Broken(f"reads wait {ENDS_S:g} s after all was mended: {self._waits()}")

    def _waits(self) -> str:
        waits = [
            f"{name}: {wait.why or 'nobody says for what'}"
            for name, host in self.hosts.items()
            for wait in list(host.waiting.table._all)[:8]
        ]
        return "; ".join(waits) or "nobody waits"

    async def _read_all(self) -> None:
        """Read every byte on every host."""
        for name in self.names:
            self.network.be(name)
            for image_id, data in self.images.items():
                stream = requests.Stream(requests.Klass.GUEST, "all")
                with trio.move_on_after(ENDS_S) as late:
                    for offset in range(0, len(data), 256 * KIB):
                        while not await self._read_once(name, stream, image_id, offset, 256 * KIB):
                            pass
                        late.deadline = trio.current_time() + ENDS_S
                    continue
                raise Broken(
                    f"{name}: image {image_id} cannot be read in {ENDS_S:g} s: {self.last_wait}"
                )

    async def _must_be_empty(self) -> None:
        with trio.move_on_after(EMPTY_S):
            while any(self._left().values()):  # noqa: ASYNC110 - no event announces it
                await trio.sleep(1)
            return
        raise Broken(f"what was begun does not end: {self._left()}")

    async def _outlive_the_sources(self) -> None:
        """Delete all images once they are fully cached everywhere: guests must not notice.

        All hosts but one may lose some or all of their cache: that one has all chunks.

        """
        with trio.move_on_after(ENDS_S) as late:
            while not all(self._is_whole(name) for name in self.names):  # noqa: ASYNC110
                await trio.sleep(1)
        if late.cancelled_caught:
            shown = {
                name: host.hydration.status.status_of(image_id)
                for name, host in self.hosts.items()
                for image_id in self.images
            }
            raise Broken(f"not all becomes whole: {shown}")
        for source in self.sources:
            source.blobs.clear()
        self.note("all images are deleted at their sources")
        keeper = self.rng.choice(self.names)
        victims = [name for name in self.names if name != keeper]
        self.note(f"{keeper} keeps what it has")
        async with trio.open_nursery() as nursery:
            for _ in range(DELETED_ROUNDS):
                self.damage(self.rng.choice(victims))
                fault = self.rng.choice((self.kill, self.break_links, self.wipe, self.silence))
                undo = fault(self.rng.choice(victims))
                if undo is not None:
                    self._undo.append(undo)
                    nursery.start_soon(self._undo_fault_later, undo, self.rng.random() * 60)
                pause_s = 2 * virtual_hosts.LOST_AFTER_S / DELETED_ROUNDS
                await trio.sleep(self.rng.random() * pause_s)
                await self._read_all()

    def _is_whole(self, name: str) -> bool:
        host = self.hosts.get(name)
        shown = (
            [host.hydration.status.status_of(image_id) for image_id in self.images]
            if host
            else [None]
        )
        return all(one is not None and one["state"] == "fully_cached" for one in shown)

    def _must_be_foreseen(self) -> None:
        for host in self.hosts.values():
            if host.net.faults.count:
                raise Broken(f"{host.name}: {host.net.faults.count} errors that nobody foresaw")

    def _left(self) -> dict[str, dict[str, int]]:
        tables = {name: host.tables() for name, host in self.hosts.items()}
        return {
            name: left
            for name, table in tables.items()
            if (left := {what: count for what, count in table.items() if count})
        }

    def _must_be_read_once(self) -> None:
        chunks = {
            ("" if self.settings.by_content else image_id, data[at : at + CHUNK])
            for image_id, data in self.images.items()
            for at in range(0, len(data), CHUNK)
        }
        unique = sum(len(chunk) for _, chunk in chunks if any(chunk))
        given = sum(source.read_bytes for source in self.sources)
        if self.is_calm and given > ONCE * unique:
            raise Broken(f"the source gave {given} bytes, there are {unique}")


FAULTS: tuple[Fault, ...] = (
    World.kill,
    World.break_source,
    World.break_source,
    World.silence,
    World.break_links,
    World.slow_links,
    World.lie,
    World.damage,
    World.lose_map,
    World.remap,
    World.set_clock,
    World.hydrate,
)


def play(seed: int, faults: Sequence[Fault] = FAULTS) -> tuple[World, BaseException | None]:
    """Do one run; return it, and its error."""
    return play_world(seed, lambda folder: World(seed, folder, faults))


def play_world(
    seed: int, make: Callable[[pathlib.Path], W], cpu_s: float = CPU_S
) -> tuple[W, BaseException | None]:
    """Do the run that ``make`` returns for a folder; return it, and its error."""
    trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True  # as trio's plug-in for hypothesis does
    trio._core._run._r.seed(seed)

    def too_long(*_: Any) -> None:
        raise Broken(
            f"the run takes more than {cpu_s} s of processor time: something goes round and round"
        )

    async def main() -> None:
        await world.run()

    before = signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        with tempfile.TemporaryDirectory(dir=shared_memory()) as folder:
            world = make(pathlib.Path(folder))
            rng = random.Random(f"threads/{seed}")
            with world.network.in_force(), virtual_hosts.no_threads(rng), world.conditions():
                try:
                    trio.run(main, clock=world.clock)
                except BaseException as e:
                    if isinstance(e, KeyboardInterrupt):
                        raise
                    return world, e
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    return world, None


def shared_memory() -> str | None:
    """Return a folder in memory, or None."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def causes(error: BaseException) -> list[BaseException]:
    """Return the members of exception groups."""
    if isinstance(error, BaseExceptionGroup):
        return [found for part in error.exceptions for found in causes(part)]
    return [error]


def report_failure(seed: int, world: World, error: BaseException, command: str = "virtual") -> None:
    """Print the error, and how to repeat it."""
    for one in causes(error):
        print(f"seed {seed}: {type(one).__name__}: {one}")
        if not isinstance(one, Broken):
            import traceback

            traceback.print_exception(one)
    print("\n".join(world.trace[-40:]))
    print(f"The same again: python -m tests.chaos.{command} --seeds {seed}", flush=True)


def main() -> int:
    """Run seeds, and print those with errors."""
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of names have an order, too
        argv = [sys.executable, "-m", "tests.chaos.virtual", *sys.argv[1:]]
        os.execve(sys.executable, argv, {**os.environ, "PYTHONHASHSEED": "0"})
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.virtual", description=__doc__)
    parser.add_argument("--seeds", default="0-50", help="one, or FIRST-LAST (0-50)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--verbose", action="store_true", help="print what the hosts log")
    options = parser.parse_args()
    level = logging.DEBUG if options.verbose else logging.CRITICAL
    logging.basicConfig(level=level, format="%(name)s %(message)s")
    first, _, last = options.seeds.partition("-")
    began_s, failed, done, reads = time.monotonic(), [], 0, 0
    faults: collections.Counter[str] = collections.Counter()
    for seed in range(int(first), int(last or first) + 1):
        if time.monotonic() - began_s > options.seconds:
            break
        world, error = play(seed)
        done, reads = done + 1, reads + world.reads
        faults.update(world.done)
        if error is not None:
            failed.append(seed)
            report_failure(seed, world, error)
    took_s = time.monotonic() - began_s
    for name, count in sorted(faults.items()):
        print(f"{name:<18}{count:>6}")
    print(f"{done} seeds, {reads} reads compared, {took_s:.0f} s; broken: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
