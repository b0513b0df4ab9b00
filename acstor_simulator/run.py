# SPDX-License-Identifier: Apache-2.0
"""One run: a cloud under traffic in which guests boot under one policy.

Monitoring begins first, as in S4, section 5.6; the guests start together after
``QUIET_S``, so the first ring that follows the traffic is there when they do.
"""

import dataclasses
import itertools
import random
import statistics
from collections.abc import Callable

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


def _table(policy: str, world: cloud.Cloud) -> rings.Table:
    if policy in TRAFFIC_POLICIES:
        caches = [host.cache for host in world.hosts]
        return rings.TrafficTable(world.tree, caches, policy == "acstor-switches")
    return rings.Table(world.tree, rings.POD if policy == "collaborative" else None)


def _policy(policy: str, world: cloud.Cloud, table: rings.Table) -> policies.Policy:
    if policy == "none":
        return policies.NoCache(world)
    if policy == "local":
        return policies.LocalCache(world)
    return policies.Exchange(world, table)


TRAFFIC_POLICIES = ("acstor", "acstor-switches")
POLICIES = ("none", "local", "collaborative", *TRAFFIC_POLICIES)
"""S4's four; the last one also follows the loads of switches (Algorithm 2)."""


def simulate(
    scenario: Scenario, policy: str, progress: Callable[[int], None] = lambda booted: None
) -> Result:
    """Return what a scenario gives under one of ``POLICIES``.

    The same scenario has the same guests, images and traffic under each of them.

    :param progress: told each time how many guests have booted
    """
    return _Run(scenario, policy, progress).result()


class _Run:
    def __init__(self, scenario: Scenario, policy: str, progress: Callable[[int], None]) -> None:
        rng = random.Random(scenario.seed)
        self._tree = topology.Tree(scenario.shape)
        self._world = cloud.Cloud(self._tree)
        hosts = scenario.shape.hosts
        self._loads = traffic.draw_loads(
            hosts, scenario.mean, scenario.cv, 2 * scenario.shape.host_rate, rng
        )
        traffic.spread(self._tree, self._loads, scenario.partners, scenario.reach, rng)
        trace_of = [
            traces.boot_trace(image, scenario.chunks, scenario.common, scenario.seed)
            for image in range(scenario.images)
        ]
        self._guests = [
            cloud.Guest(number % hosts, rng.choice(trace_of)) for number in range(scenario.guests)
        ]
        starts_s = [rng.uniform(0, GUESTS_START_WITHIN_S) for _ in self._guests]
        self._name = policy
        self._table = _table(policy, self._world)
        self._policy = _policy(policy, self._world, self._table)
        self._progress = progress
        self._booted = 0
        self._traffic_cv: list[float] = []
        env = self._world.env
        env.process(self._collect())
        self._all_booted = env.all_of(
            [
                env.process(self._boot(guest, QUIET_S + start_s))
                for guest, start_s in zip(self._guests, starts_s, strict=True)
            ]
        )

    def result(self) -> Result:
        env = self._world.env
        env.run(until=env.any_of([self._all_booted, env.timeout(LONGEST_S)]))
        booted = [guest.booted_s for guest in self._guests if guest.booted_s is not None]
        return Result(
            self._name,
            booted,
            len(self._guests) - len(booted),
            self._world.counts.storage,
            self._world.counts.peer,
            self._traffic_cv,
            traffic.cv_of([self._others(host) for host in range(len(self._loads))]),
            self._table.remaps,
        )

    def _boot(self, guest: cloud.Guest, start_s: float) -> network.Waiting:
        env = self._world.env
        yield env.timeout(start_s)
        for think_s, cid in guest.trace:
            if think_s:
                yield env.timeout(think_s)
            yield from self._policy.read(guest.host, cid)
        guest.booted_s = env.now - start_s
        self._booted += 1
        self._progress(self._booted)

    def _others(self, host: int) -> float:
        return sum(link.others for link in self._nic(host))

    def _collect(self) -> network.Waiting:
        """Give the table each collection's traffic, as agents' samples would, for ever."""
        hosts = range(len(self._loads))
        others = [
            decision_api.Traffic(*(int(link.others * COLLECTION_S) for link in self._nic(host)))
            for host in hosts
        ]
        before = [0] * len(hosts)
        for collection in itertools.count(1):
            yield self._world.env.timeout(COLLECTION_S)
            now = [sum(link.chunk_bytes for link in self._nic(host)) for host in hosts]
            totals = [
                self._others(host) + (now[host] - before[host]) / COLLECTION_S for host in hosts
            ]
            before = now
            self._traffic_cv.append(traffic.cv_of(totals))
            figures = [self._figures(host, others[host]) for host in hosts]
            self._table.collected(collection, figures, COLLECTION_S)

    def _figures(self, host: int, others: decision_api.Traffic) -> rings.Figures:
        waited = self._world.hosts[host].take_waited()
        source = waited.pop(None, decision_api.Timed())
        return rings.Figures(others, {n: w for n, w in waited.items() if n is not None}, source)

    def _nic(self, host: int) -> tuple[network.Link, network.Link]:
        """Return the links of a host's cable: into it, out of it."""
        sent, received = self._tree.nic(host)
        return received, sent
