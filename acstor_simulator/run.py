# SPDX-License-Identifier: Apache-2.0
"""One run: a cloud under traffic in which guests boot under one policy.

Monitoring begins first, as in S4, section 5.6; the guests start together after
``QUIET_S``, so the first ring that follows the traffic is there when they do.
"""

import dataclasses
import functools
import random
import statistics
from collections.abc import Callable

from acstor_agent.core.transfers import want
from acstor_common import decision_api
from acstor_common import ids
from acstor_simulator import arrivals
from acstor_simulator import cloud
from acstor_simulator import meters
from acstor_simulator import network
from acstor_simulator import policies
from acstor_simulator import rings
from acstor_simulator import topology
from acstor_simulator import traces
from acstor_simulator import traffic

COLLECTION_S = 5.0
QUIET_S = 3 * COLLECTION_S
LONGEST_S = 1800.0
"""A guest that has not booted by then counts as one that cannot."""
GUESTS_START_WITHIN_S = 1.0


@dataclasses.dataclass(frozen=True)
class Scenario:
    """What is simulated.

    :param mean: bytes per second that a host sends and receives besides chunks, on average
    :param cv: how unevenly (S4, Equation 2)
    :param partners: hosts that each host talks to
    :param reach: distance of the farthest of them, in switches
    :param common: share of its boot chunks that an image has in common with the others
    :param busy: share of each link but the storage's that others take, beside ``mean``
    :param think_s: what a guest needs to boot from a disk that is there
    :param sizes: of whole images; the default is the demo's Debian
    """

    shape: topology.Shape = topology.ONE_SWITCH
    guests: int = 160
    images: int = 5
    mean: float = 70e6
    cv: float = 0.8
    partners: int = 8
    reach: int = 5
    chunks: int = traces.CHUNKS
    common: float = 0.3
    seed: int = 1
    busy: float = 0.0
    think_s: float = traces.THINK_S
    sizes: traces.Sizes = traces.DEBIAN
    longest_s: float = LONGEST_S


@dataclasses.dataclass(frozen=True)
class Result:
    """What one run gave.

    :param boot_s: seconds each guest needed, of those that booted
    :param traffic_cv: CV of all traffic over the hosts, per collection
    :param true_cv: CV of the traffic besides chunks, which the links' limits may have lowered
    :param remaps: v-node tables that were published after the first
    :param ready_s: seconds until a guest had its first byte
    :param whole_s: seconds until all of an image was on a host, for each that fetched it
    :param used: images that guests booted from: so many different ones, as many times as a
        different rack had one of them, and a different host
    :param storage_bytes: that left the storage
    :param uplink_bytes: that crossed links between racks and the rest, both directions of each
    :param storage_peak: bytes per second, in the busiest second
    :param uplink_peak: the same of the busiest link
    :param storage_rates: bytes per second that left the storage, second by second
    """

    policy: str
    boot_s: list[float]
    unbooted: int
    storage_chunks: int
    peer_chunks: int
    traffic_cv: list[float]
    true_cv: float
    remaps: int
    ready_s: list[float]
    whole_s: list[float]
    used: tuple[int, int, int]
    storage_bytes: float
    uplink_bytes: float
    storage_peak: float
    uplink_peak: float
    storage_rates: list[float]

    @property
    def mean_boot_s(self) -> float:
        """The mean over the guests that booted."""
        return statistics.fmean(self.boot_s) if self.boot_s else float("nan")


POLICIES = tuple(policies.POLICIES)
"""S4's four, ``acstor`` with the loads of switches (Algorithm 2), and those for whole images."""
BOOTING = POLICIES[:5]
"""Those that know nothing of an image but what is read of it while guests boot."""


def simulate(
    scenario: Scenario, policy: str, progress: Callable[[int], None] = lambda booted: None
) -> Result:
    """Return what a scenario gives under one of ``POLICIES``.

    The same scenario has the same guests, images and traffic under each of them.

    :param progress: told each time how many guests have booted
    """
    return _Run(scenario, policy, progress).result()


class _Guest:
    """One guest that boots: it thinks and reads, one chunk after the other.

    :param booted: is told how many seconds it needed to its first byte, and in all
    """

    def __init__(
        self,
        host: cloud.Host,
        image: traces.Image,
        arrival: Callable[[cloud.Host, traces.Image], arrivals.Arrival],
        booted: Callable[[float, float], None],
    ) -> None:
        self.image = image
        self._host, self._agenda, self._reads = host, host.world.agenda, image.reads
        self._make_arrival, self._booted = arrival, booted
        self._began_s, self._first_s = 0.0, 0.0
        self._at = 0

    def start(self) -> None:
        """Begin to boot."""
        self._began_s = self._agenda.now
        self._arrival = self._make_arrival(self._host, self.image)
        self._arrival.when_ready(self._think)

    def _think(self) -> None:
        """Go on where it is, as far as it need not wait."""
        while self._at < len(self._reads):
            think_s, chunk = self._reads[self._at]
            if think_s:
                self._agenda.after(think_s, self._read)
                return
            if not self._has(chunk):
                return
            self._have()
        self._booted(self._first_s, self._agenda.now - self._began_s)

    def _read(self) -> None:
        if self._has(self._reads[self._at].chunk):
            self._go_on()

    def _has(self, chunk: want.Want) -> bool:
        """Say whether a chunk is here; else the guest goes on when it is."""
        return self._arrival.has(chunk, self._go_on, self)

    def _go_on(self) -> None:
        self._have()
        self._think()

    def _have(self) -> None:
        if not self._at:  # what it thought before that, it did not wait for
            self._first_s = self._agenda.now - self._began_s - self._reads[0].think_s
        self._at += 1


def _make_images(scenario: Scenario, how: policies.Policy) -> list[traces.Image]:
    """Return the images as they are under a policy."""
    images = [
        traces.boot_image(image, scenario.chunks, scenario.common, scenario.seed, scenario.think_s)
        for image in range(scenario.images)
    ]
    if how.arrival is not arrivals.BootImage:
        return images
    return [traces.prepare(image, n, scenario.sizes) for n, image in enumerate(images)]


def _place(scenario: Scenario, number: int) -> int:
    """Return the host of a guest; where there are more hosts than guests all racks have some."""
    shape = scenario.shape
    if scenario.guests < shape.hosts:
        rack = number % (shape.pods * shape.racks)
        return rack * shape.rack_hosts + number // (shape.pods * shape.racks)
    return number % shape.hosts


class _Run:
    def __init__(self, scenario: Scenario, policy: str, progress: Callable[[int], None]) -> None:
        rng = random.Random(scenario.seed)
        self._tree = topology.Tree(scenario.shape)
        count = scenario.shape.hosts
        self._loads = traffic.draw_loads(
            count, scenario.mean, scenario.cv, 2 * scenario.shape.host_rate, rng
        )
        traffic.spread(self._tree, self._loads, scenario.partners, scenario.reach, rng)
        self._tree.load(scenario.busy)
        how = policies.POLICIES[policy]
        images = _make_images(scenario, how)
        packed = scenario.sizes.stored / scenario.sizes.data
        self._world = cloud.Cloud(self._tree, images, scenario.seed, packed)
        self._table = how.make_table(self._world)
        how.make_hosts(self._world, self._table)
        self._hosts = list(self._world.hosts.values())
        place = functools.partial(_place, scenario)
        guests = [
            _Guest(self._hosts[place(number)], rng.choice(images), self._arrival, self._note)
            for number in range(scenario.guests)
        ]
        for guest in guests:
            start_s = QUIET_S + rng.uniform(0, GUESTS_START_WITHIN_S)
            self._world.agenda.after(start_s, guest.start)
        self._name, self._how, self._guests = policy, how, guests
        self._scenario, self._progress = scenario, progress
        self._arrivals: dict[tuple[int, ids.ImageId], arrivals.Arrival] = {}
        self._booted_s: list[float] = []
        self._ready_s: list[float] = []
        self._whole_s: list[float] = []
        self._storage, self._uplinks = (
            meters.Meter(self._world.agenda, links, QUIET_S, self._goes_on)
            for links in ([self._tree.storage], self._tree.uplinks())
        )
        self._traffic_cv: list[float] = []
        self._collections = 0
        self._others = [
            decision_api.Traffic(*(int(link.others * COLLECTION_S) for link in self._nic(host)))
            for host in range(count)
        ]
        self._before = [0] * count
        self._world.agenda.after(COLLECTION_S, self._collect)

    def result(self) -> Result:
        self._world.agenda.run(QUIET_S + self._scenario.longest_s)
        return Result(
            self._name,
            self._booted_s,
            len(self._guests) - len(self._booted_s),
            self._world.counts.storage,
            self._world.counts.peer,
            self._traffic_cv,
            traffic.cv_of([self._others_s(host) for host in range(len(self._hosts))]),
            self._table.remaps,
            self._ready_s,
            self._whole_s,
            self._used(),
            self._storage.sent,
            self._uplinks.sent,
            max(self._storage.peak),
            max(self._uplinks.peak),
            self._storage.rates,
        )

    def _used(self) -> tuple[int, int, int]:
        rack_of = self._tree.rack_of
        racks = {(rack_of(host), image_id) for host, image_id in self._arrivals}
        return len({image_id for _, image_id in racks}), len(racks), len(self._arrivals)

    def _arrival(self, host: cloud.Host, image: traces.Image) -> arrivals.Arrival:
        """Return how an image comes to a host; it begins to when its first guest does."""
        key = host.number, image.image_id
        if key not in self._arrivals:
            made = self._how.arrival(host, image, self._scenario.sizes, self._whole)
            self._arrivals[key] = made
        return self._arrivals[key]

    def _goes_on(self) -> bool:
        """Say whether guests boot, or images are not whole yet."""
        to_come = len(self._arrivals) if self._how.arrival.goes_on else 0
        return len(self._booted_s) < len(self._guests) or len(self._whole_s) < to_come

    def _whole(self, after_s: float) -> None:
        self._whole_s.append(after_s)
        self._look_whether_over()

    def _note(self, ready_s: float, booted_s: float) -> None:
        self._ready_s.append(ready_s)
        self._booted_s.append(booted_s)
        self._progress(len(self._booted_s))
        self._look_whether_over()

    def _look_whether_over(self) -> None:
        if not self._goes_on():
            self._world.agenda.stop()

    def _others_s(self, host: int) -> float:
        return sum(link.others for link in self._nic(host))

    def _collect(self) -> None:
        """Give the table a collection's traffic, as agents' samples would, and what it decides."""
        numbers = range(len(self._hosts))
        now = [sum(link.chunk_bytes for link in self._nic(host)) for host in numbers]
        self._traffic_cv.append(
            traffic.cv_of(
                [
                    self._others_s(host) + (now[host] - self._before[host]) / COLLECTION_S
                    for host in numbers
                ]
            )
        )
        self._before = now
        self._collections += 1
        former, figures = self._table.ring, [self._figures(host) for host in numbers]
        table = self._table.collected(self._collections, figures, COLLECTION_S)
        if table is not None:
            for host in self._hosts:
                host.take_table(table, former)
        self._world.agenda.after(COLLECTION_S, self._collect)

    def _figures(self, host: int) -> rings.Figures:
        waited = self._hosts[host].take_waited()
        source = waited.pop(None, decision_api.Timed())
        peers = {name: timed for name, timed in waited.items() if name is not None}
        return rings.Figures(self._others[host], peers, source)

    def _nic(self, host: int) -> tuple[network.Link, network.Link]:
        """Return the links of a host's cable: into it, out of it."""
        sent, received = self._tree.nic(host)
        return received, sent
