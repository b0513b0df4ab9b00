# SPDX-License-Identifier: Apache-2.0
"""One run: a cloud under traffic in which guests boot under one policy.

Monitoring begins first, as in S4, section 5.6; the guests start together after
``QUIET_S``, so the first ring that follows the traffic is there when they do.
"""

import dataclasses
import random
import statistics
from collections.abc import Callable

from acstor_agent.core.transfers import want
from acstor_common import decision_api
from acstor_simulator import cloud
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


@dataclasses.dataclass(frozen=True)
class Result:
    """What one run gave.

    :param boot_s: seconds each guest needed, of those that booted
    :param traffic_cv: CV of all traffic over the hosts, per collection
    :param true_cv: CV of the traffic besides chunks, which the links' limits may have lowered
    :param remaps: v-node tables that were published after the first
    """

    policy: str
    boot_s: list[float]
    unbooted: int
    storage_chunks: int
    peer_chunks: int
    traffic_cv: list[float]
    true_cv: float
    remaps: int

    @property
    def mean_boot_s(self) -> float:
        """The mean over the guests that booted."""
        return statistics.fmean(self.boot_s) if self.boot_s else float("nan")


POLICIES = tuple(policies.POLICIES)
"""S4's four; the last one also follows the loads of switches (Algorithm 2)."""


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

    :param keeps: its host keeps what it reads
    :param booted: is told how many seconds it needed
    """

    def __init__(
        self,
        host: cloud.Host,
        image: traces.Image,
        keeps: bool,
        booted: Callable[[float], None],
    ) -> None:
        host.attach(image)
        self._host, self._world, self._reads = host, host.world, image.reads
        self._keeps, self._booted = keeps, booted
        self._began_s = 0.0
        self._at = 0

    def start(self) -> None:
        """Begin to boot."""
        self._began_s = self._world.now
        self._think()

    def _think(self) -> None:
        """Go on where it is, as far as it need not wait."""
        while self._at < len(self._reads):
            think_s, chunk = self._reads[self._at]
            if think_s:
                self._world.agenda.after(think_s, self._read)
                return
            if not self._has(chunk):
                return
            self._at += 1
        self._booted(self._world.now - self._began_s)

    def _read(self) -> None:
        if self._has(self._reads[self._at].chunk):
            self._go_on()

    def _has(self, chunk: want.Want) -> bool:
        """Say whether a chunk is here; else the guest goes on when it is."""
        if self._keeps:
            return self._host.have(chunk, self._go_on, self)
        self._world.from_storage(self._host, chunk, self._go_on)
        return False

    def _go_on(self) -> None:
        self._at += 1
        self._think()


class _Run:
    def __init__(self, scenario: Scenario, policy: str, progress: Callable[[int], None]) -> None:
        rng = random.Random(scenario.seed)
        self._tree = topology.Tree(scenario.shape)
        count = scenario.shape.hosts
        self._loads = traffic.draw_loads(
            count, scenario.mean, scenario.cv, 2 * scenario.shape.host_rate, rng
        )
        traffic.spread(self._tree, self._loads, scenario.partners, scenario.reach, rng)
        images = [
            traces.boot_image(image, scenario.chunks, scenario.common, scenario.seed)
            for image in range(scenario.images)
        ]
        how = policies.POLICIES[policy]
        self._world = cloud.Cloud(self._tree, images, scenario.seed)
        self._table = how.make_table(self._world)
        how.make_hosts(self._world, self._table)
        self._hosts = list(self._world.hosts.values())
        guests = [
            _Guest(self._hosts[number % count], rng.choice(images), how.keeps, self._note)
            for number in range(scenario.guests)
        ]
        for guest in guests:
            start_s = QUIET_S + rng.uniform(0, GUESTS_START_WITHIN_S)
            self._world.agenda.after(start_s, guest.start)
        self._name, self._guests = policy, len(guests)
        self._progress = progress
        self._booted_s: list[float] = []
        self._traffic_cv: list[float] = []
        self._collections = 0
        self._others = [
            decision_api.Traffic(*(int(link.others * COLLECTION_S) for link in self._nic(host)))
            for host in range(count)
        ]
        self._before = [0] * count
        self._world.agenda.after(COLLECTION_S, self._collect)

    def result(self) -> Result:
        self._world.agenda.run(LONGEST_S)
        return Result(
            self._name,
            self._booted_s,
            self._guests - len(self._booted_s),
            self._world.counts.storage,
            self._world.counts.peer,
            self._traffic_cv,
            traffic.cv_of([self._others_s(host) for host in range(len(self._hosts))]),
            self._table.remaps,
        )

    def _note(self, booted_s: float) -> None:
        self._booted_s.append(booted_s)
        self._progress(len(self._booted_s))
        if len(self._booted_s) == self._guests:
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
