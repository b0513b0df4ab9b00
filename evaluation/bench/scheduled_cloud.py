# SPDX-License-Identifier: Apache-2.0
"""A simulated cloud on which Nova's weighers place bursts of servers.

It runs in the virtualenv of the OpenStack services: handler, stock weighers and normalization are
Nova's, the image weigher is acstor's.  Hosts, network and caches are those of
``acstor_simulator``.  Requests, capacity and builds are as in nova-scheduler with one worker.
"""

import random
import statistics
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from acstor_agent.engine import priority
from acstor_common.model import ids
from acstor_common.wire import decision_messages
from acstor_nova.locality import host_weight
from acstor_nova.locality import locality_cache
from acstor_simulator.model import boot_traces
from acstor_simulator.model import cloud
from acstor_simulator.model import guests
from acstor_simulator.model import image_delivery
from acstor_simulator.model import policies
from acstor_simulator.model import topology
from acstor_simulator.model import workloads

SHAPE = topology.Shape(pods=1, racks=4, rack_hosts=10)
IMAGES = 20
ZIPF = 1.0
CHUNKS = 128
SIZES = boot_traces.Sizes(stored=10_000_000, data=16_000_000)
CACHED_IMAGES = 8
"""Images that fit a host's cache; unused ones are evicted, the oldest first."""
RAM_MB, VCPUS, DISK_MB = 128 * 1024, 128, 2000 * 1024
FLAVORS = ((2, 0.5), (4, 0.3), (8, 0.2))
"""GiB of memory and share; each GiB has one VCPU and 10 GiB of disk."""
BURST, BURST_S = 8.0, 2.0
"""Mean size of a burst from one image, and its length."""
LIFE_S = 1200.0
USED_SHARE = 0.6
"""Mean use of all memory, which determines the arrival rate."""
RUN_S = 3600.0
BUILD_S = 8.0
REPORT_S, TRAFFIC_S, LOOK_S = 15.0, 5.0, 15.0
"""Intervals of image reports, of link reports, and of samples of the hosts' use."""
WARM_SHARE = 0.95
EXCHANGE = policies.ExchangePolicy(
    policies.AGENT,
    may_refer=True,
    urgency=priority.Priority.GUEST,
    delivery=image_delivery.BootImageMirror,
)
TIMINGS = locality_cache.DEFAULT_TIMINGS


class Arrival(NamedTuple):
    """A server that a user creates."""

    at_s: float
    image: int
    ram_gb: int
    life_s: float


def arrivals(seed: int) -> Iterator[Arrival]:
    """Yield the servers of a run, ordered by time."""
    rng = random.Random(f"{seed}/arrivals")
    popularity = [1 / rank**ZIPF for rank in range(1, IMAGES + 1)]
    mean_gb = sum(gb * share for gb, share in FLAVORS)
    all_servers = USED_SHARE * SHAPE.host_count * RAM_MB / 1024 / mean_gb
    bursts_per_s = all_servers / LIFE_S / BURST
    found, at_s = [], 0.0
    while (at_s := at_s + rng.expovariate(bursts_per_s)) < RUN_S:
        [image] = rng.choices(range(IMAGES), popularity)
        [gb] = rng.choices(*zip(*FLAVORS, strict=True))
        for _ in range(1 + int(rng.expovariate(1 / (BURST - 0.5)))):
            life_s = rng.expovariate(1 / LIFE_S)
            found.append(Arrival(at_s + rng.uniform(0, BURST_S), image, gb, life_s))
    yield from sorted(found)


class Choice(NamedTuple):
    """The placement of a server.

    :param is_warm: the host had ``WARM_SHARE`` of the boot set
    :param was_possible: such a host had room
    """

    host: int
    is_warm: bool
    was_possible: bool


class CloudHost:
    """A simulated host, its agent's last report, and Nova's view of it."""

    def __init__(self, host: cloud.SimulatedHost, state: Any) -> None:
        self.host, self.state = host, state
        self.reported: dict[int, tuple[float, float]] = {}
        self.link_load = 0.0
        self.servers = dict.fromkeys(range(IMAGES), 0)
        self.used_s: dict[int, float] = {}
        self.deliveries: dict[int, image_delivery.Delivery] = {}
        self.complete: set[int] = set()
        self._chunk_bytes = 0

    def has_room(self, server: Arrival) -> bool:
        """Return whether Placement would return this host."""
        free_vcpus = VCPUS - self.state.vcpus_used
        return self.state.free_ram_mb >= server.ram_gb * 1024 and free_vcpus >= server.ram_gb

    def add(self, server: Arrival, sign: int = 1) -> None:
        """Add a server, or remove it with sign -1."""
        self.state.free_ram_mb -= sign * server.ram_gb * 1024
        self.state.free_disk_mb -= sign * server.ram_gb * 10 * 1024
        self.state.vcpus_used += sign * server.ram_gb
        self.state.num_instances += sign
        self.servers[server.image] += sign

    def shares(self, image: boot_traces.TracedImage) -> tuple[float, float]:
        """Return the cached shares of a boot set and of its image."""
        cache = self.host.cache
        boot = sum(frame.cid in cache for frame in image.chunks)
        rest = sum(piece.cid in cache for piece in image.rest)
        boot_share = boot / len(image.chunks)
        return boot_share, (boot + rest) / (len(image.chunks) + len(image.rest))

    def report(self, images: Sequence[boot_traces.TracedImage]) -> None:
        """Report the images that are cached or in delivery here."""
        self.reported = {number: self.shares(images[number]) for number in self.deliveries}

    def measure(self) -> None:
        """Report the load of the link's busier direction."""
        links = self.host.world.tree.host_links(self.host.number)
        sent = max(link.chunk_bytes for link in links)
        busy = (sent - self._chunk_bytes) / TRAFFIC_S + max(link.others for link in links)
        self._chunk_bytes, self.link_load = sent, min(1.0, busy / links[0].capacity)


class Run:
    """A run: the weighers of ``order`` place all servers.

    :param make_state: returns Nova's state of a host by its name
    :param order: returns Nova's states, the best first, for an image
    """

    def __init__(
        self,
        seed: int,
        make_state: Callable[[str], Any],
        order: Callable[[list[Any], str], list[Any]],
    ) -> None:
        self._order, self._rng = order, random.Random(f"{seed}/run")
        self.images = [
            boot_traces.prepare(boot_traces.make_traced_image(n, CHUNKS, 0.3, seed), n, SIZES)
            for n in range(IMAGES)
        ]
        tree = topology.Tree(SHAPE)
        self._world = cloud.Cloud(tree, self.images, seed, SIZES.stored / SIZES.data)
        EXCHANGE.make_hosts(self._world, EXCHANGE.make_table(self._world, 1.0))
        self.hosts = [CloudHost(one, make_state(name)) for name, one in self._world.hosts.items()]
        self._by_name = {one.host.name: one for one in self.hosts}
        self._number_of = {one.image_id: n for n, one in enumerate(self.images)}
        self._tables: dict[str, tuple[float, host_weight.LocalityTable]] = {}
        self.choices: list[Choice] = []
        self.rejected = 0
        self.boot_s: list[float] = []
        self.spread: list[float] = []
        self.most_builds = 0
        self._put_traffic(tree)
        self._schedule(seed)

    def _put_traffic(self, tree: topology.Tree) -> None:
        for host in range(SHAPE.host_count):
            share = min(0.8, self._rng.lognormvariate(-2.0, 0.8))
            for link in tree.host_links(host):
                link.others = share * link.capacity

    def _schedule(self, seed: int) -> None:
        agenda = self._world.agenda
        for server in arrivals(seed):
            agenda.schedule_after(server.at_s, self._create, server)
        for host in self.hosts:
            agenda.schedule_after(self._rng.uniform(0, REPORT_S), self._report, host)
            agenda.schedule_after(self._rng.uniform(0, TRAFFIC_S), self._measure, host)
        agenda.schedule_after(LIFE_S, self._look)  # when the cloud is about in its final state

    def run(self) -> None:
        """Run until RUN_S."""
        self._world.agenda.run(RUN_S)

    def _report(self, host: CloudHost) -> None:
        host.report(self.images)
        self._world.agenda.schedule_after(REPORT_S, self._report, host)

    def _measure(self, host: CloudHost) -> None:
        host.measure()
        self._world.agenda.schedule_after(TRAFFIC_S, self._measure, host)

    def _look(self) -> None:
        used = [RAM_MB - host.state.free_ram_mb for host in self.hosts]
        self.spread.append(max(used) / statistics.fmean(used))
        self._world.agenda.schedule_after(LOOK_S, self._look)

    # The decision service and the weigher's cache

    def lookup(self, image_id: str) -> host_weight.LocalityTable:
        """Return a table of an image as ``locality_cache`` would at this time."""
        now_s = self._world.now
        fetched_s, table = self._tables.get(image_id, (float("-inf"), {}))
        if now_s - fetched_s >= TIMINGS.fresh_s:
            fetched = host_weight.make_table(self._locality(image_id))
            self._tables[image_id] = now_s, fetched
            if now_s - fetched_s >= TIMINGS.stale_s:
                return fetched
        return table

    def _locality(self, image_id: str) -> decision_messages.ImageLocality:
        number = self._number_of[ids.ImageId(image_id)]
        return decision_messages.ImageLocality(
            image_id,
            [
                decision_messages.HostLocality(
                    host.host.name, *host.reported[number], host.link_load
                )
                for host in self.hosts
                if host.reported.get(number, (0.0, 0.0)) != (0.0, 0.0)
            ],
        )

    # Servers

    def _create(self, server: Arrival) -> None:
        fitting = [host for host in self.hosts if host.has_room(server)]
        if not fitting:
            self.rejected += 1
            return
        image = self.images[server.image]
        warm = {host.host.name for host in fitting if host.shares(image)[0] >= WARM_SHARE}
        best = self._order([host.state for host in fitting], image.image_id)[0]
        chosen = self._by_name[best.host]
        self.choices.append(Choice(chosen.host.number, best.host in warm, bool(warm)))
        chosen.add(server)
        chosen.state.num_io_ops += 1
        self.most_builds = max(self.most_builds, chosen.state.num_io_ops)
        agenda = self._world.agenda
        agenda.schedule_after(BUILD_S, self._built, chosen, server)
        agenda.schedule_after(BUILD_S + server.life_s, chosen.add, server, -1)

    def _built(self, host: CloudHost, server: Arrival) -> None:
        host.state.num_io_ops -= 1
        image = self.images[server.image]
        task = workloads.task(workloads.BOOT, image, CHUNKS, self._rng)
        guests.Guest(host.host, image, task, self).start()

    def note_boot(self, guest: guests.Guest, ready_s: float, booted_s: float) -> None:
        """Record the duration of a boot."""
        self.boot_s.append(booted_s)

    def delivery_to(
        self, simulated: cloud.SimulatedHost, image: boot_traces.TracedImage
    ) -> image_delivery.Delivery:
        """Return the delivery of an image to a host; the first request starts it."""
        host, number = self._by_name[simulated.name], self._number_of[image.image_id]
        host.used_s[number] = self._world.now
        if number not in host.deliveries:
            self._evict(host)
            complete = host.complete
            host.deliveries[number] = image_delivery.BootImageMirror(
                simulated, image, SIZES, lambda _: complete.add(number)
            )
        return host.deliveries[number]

    def _evict(self, host: CloudHost) -> None:
        unused = [one for one in host.complete if not host.servers[one]]
        while len(host.deliveries) >= CACHED_IMAGES and unused:
            oldest = min(unused, key=host.used_s.__getitem__)
            unused.remove(oldest)
            host.complete.discard(oldest)
            del host.deliveries[oldest], host.host.images[self.images[oldest].image_id]
            image = self.images[oldest]
            gone = [one.cid for one in (*image.chunks, *image.rest) if one.cid in host.host.cache]
            for cid in gone:
                del host.host.cache[cid]
            host.host.run_actions(host.host.core.chunks_evicted(self._world.now, gone))

    def result(self) -> dict[str, Any]:
        """Return the figures of the run."""
        possible = [one for one in self.choices if one.was_possible]
        return {
            "servers": len(self.choices),
            "rejected": self.rejected,
            "warm_was_possible": len(possible),
            "warm_share": sum(one.is_warm for one in possible) / max(1, len(possible)),
            "busiest_over_mean": statistics.fmean(self.spread),
            "busiest_over_mean_peak": max(self.spread),
            "most_builds": self.most_builds,
            "mean_boot_s": statistics.fmean(self.boot_s),
            "storage_chunks": self._world.counts.storage,
            "peer_chunks": self._world.counts.peer,
        }
