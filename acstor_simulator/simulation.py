# SPDX-License-Identifier: Apache-2.0
"""One run: guests boot on a cloud with traffic under one policy.

Guests start when the first ring follows the traffic, after ``QUIET_S`` (Wu 2017, section 5.6).
"""

import dataclasses
import random
from collections.abc import Callable

from acstor_common.model import ids
from acstor_common.wire import decision_messages
from acstor_simulator import scenario
from acstor_simulator.model import background_traffic
from acstor_simulator.model import boot_traces
from acstor_simulator.model import cloud
from acstor_simulator.model import guests
from acstor_simulator.model import image_delivery
from acstor_simulator.model import link_meter
from acstor_simulator.model import network
from acstor_simulator.model import policies
from acstor_simulator.model import ring_tables
from acstor_simulator.model import topology
from acstor_simulator.model import workloads

COLLECTION_S = 5.0
QUIET_S = 3 * COLLECTION_S
GUESTS_START_WITHIN_S = 1.0


BUSY = 0.8  # share of other traffic from which a host counts as busy
Scenario = scenario.Scenario
Result = scenario.Result
POLICIES = tuple(policies.POLICIES)
"""The paper's four policies, variants of ``acstor``, and those for whole images."""
BOOTING = POLICIES[:7]  # policies that fetch only what guests read while they boot


def simulate(
    scenario: Scenario, policy: str, progress: Callable[[int], None] = lambda booted: None
) -> Result:
    """Return the result of a scenario, equal in guests, images and traffic under all policies.

    :param progress: called with the number of booted guests
    """
    return _Run(scenario, policy, progress).result()


def _make_images(scenario: Scenario, how: policies.ExchangePolicy) -> list[boot_traces.TracedImage]:
    chunks = scenario.chunks
    if scenario.workload != workloads.BOOT:
        chunks *= workloads.DATA_SETS
    images = [
        boot_traces.make_traced_image(
            image, chunks, scenario.common, scenario.seed, scenario.think_s
        )
        for image in range(scenario.images)
    ]
    if how.delivery is not image_delivery.BootImageMirror:
        return images
    return [boot_traces.prepare(image, n, scenario.sizes) for n, image in enumerate(images)]


def _place(scenario: Scenario, number: int) -> int:
    """Return the host of a guest; few guests are spread over all racks."""
    shape = scenario.shape
    if scenario.guests < shape.host_count:
        rack = number % (shape.pods * shape.racks)
        return rack * shape.rack_hosts + number // (shape.pods * shape.racks)
    return number % shape.host_count


class _Run:
    def __init__(self, scenario: Scenario, policy: str, progress: Callable[[int], None]) -> None:
        rng = random.Random(scenario.seed)
        self._tree = topology.Tree(scenario.shape)
        count = scenario.shape.host_count
        self._loads = background_traffic.draw_loads(
            count, scenario.mean, scenario.cv, 2 * scenario.shape.host_rate, rng
        )
        self._flows = background_traffic.flows(
            self._tree, self._loads, scenario.partners, scenario.reach, rng
        )
        self._tree.load(scenario.busy)
        self._name, self._how = policy, policies.POLICIES[policy]
        images = _make_images(scenario, self._how)
        packed = scenario.sizes.stored / scenario.sizes.data
        self._world = cloud.Cloud(self._tree, images, scenario.seed, packed)
        self._table = self._how.make_table(self._world, scenario.factor)
        self._how.make_hosts(self._world, self._table)
        self._hosts = list(self._world.hosts.values())
        self._scenario, self._progress = scenario, progress
        self._deliveries: dict[tuple[int, ids.ImageId], image_delivery.Delivery] = {}
        self._later: set[guests.Guest] = set()
        self._guests = [self._make_guest(number, images, rng) for number in range(scenario.guests)]
        self._schedule_guests(rng)
        self._prepare_results()
        self._note_others()
        self._schedule_traffic()

    def _schedule_guests(self, rng: random.Random) -> None:
        scenario = self._scenario
        for number, guest in enumerate(self._guests):
            start_s = QUIET_S + rng.uniform(0, GUESTS_START_WITHIN_S)
            if scenario.warm_s and 2 * number >= len(self._guests):
                start_s += scenario.warm_s
                self._later.add(guest)
            self._world.agenda.schedule_after(start_s, guest.start)

    def _prepare_results(self) -> None:
        self._booted_s: list[float] = []
        self._ready_s: list[float] = []
        self._whole_s: list[float] = []
        self._storage, self._uplinks = (
            link_meter.LinkMeter(self._world.agenda, links, QUIET_S)
            for links in ([self._tree.storage], self._tree.rack_uplinks())
        )
        self._traffic_cv: list[float] = []
        self._collections = 0
        self._before = [0] * len(self._hosts)
        self._others: list[decision_messages.TrafficBytes] = []
        self._rates: list[float] = []
        self._later_s: list[float] = []
        self._when_later = dataclasses.replace(self._world.counts), 0.0

    def _schedule_traffic(self) -> None:
        agenda, warm_s = self._world.agenda, self._scenario.warm_s
        if warm_s:
            agenda.schedule_after(warm_s, self._begin_traffic)
            agenda.schedule_after(warm_s + QUIET_S, self._begin_later)
        else:
            self._begin_traffic()
        agenda.schedule_after(COLLECTION_S, self._collect)

    def result(self) -> Result:
        self._world.agenda.run(QUIET_S + self._scenario.warm_s + self._scenario.longest_s)
        return Result(
            self._name,
            self._booted_s,
            len(self._guests) - len(self._booted_s),
            self._world.counts.storage,
            self._world.counts.peer,
            self._traffic_cv,
            background_traffic.cv_of([self._others_s(host) for host in range(len(self._hosts))]),
            self._table.remaps,
            self._ready_s,
            self._whole_s,
            self._used(),
            self._storage.sent_bytes,
            self._uplinks.sent_bytes,
            max(self._storage.peak),
            max(self._uplinks.peak),
            self._storage.rates,
            sum(self._rates),
            self._what_was_later() if self._later else None,
        )

    def _make_guest(
        self, number: int, images: list[boot_traces.TracedImage], rng: random.Random
    ) -> guests.Guest:
        scenario, image = self._scenario, rng.choice(images)
        dice = random.Random(f"{scenario.seed}/guest/{number}")
        task = workloads.task(scenario.workload, image, scenario.chunks, dice)
        host = self._hosts[_place(scenario, number)]
        return guests.Guest(host, image, task, self)

    def _begin_traffic(self) -> None:
        background_traffic.put(self._tree, self._flows)
        self._note_others()

    def _note_others(self) -> None:
        self._others = [
            decision_messages.TrafficBytes(
                *(int(link.others * COLLECTION_S) for link in self._nic(host))
            )
            for host in range(len(self._hosts))
        ]

    def _begin_later(self) -> None:
        self._when_later = dataclasses.replace(self._world.counts), self._busy_bytes()

    def _busy(self) -> list[int]:
        return [
            host
            for host in range(len(self._hosts))
            if any(link.others >= BUSY * link.capacity for link in self._nic(host))
        ]

    def _busy_bytes(self) -> float:
        now_s = self._world.agenda.now
        return sum(self._tree.host_links(host)[0].bytes_sent(now_s) for host in self._busy())

    def _what_was_later(self) -> scenario.Later:
        counts, (before, busy_bytes) = self._world.counts, self._when_later
        return scenario.Later(
            self._later_s,
            counts.storage - before.storage,
            counts.peer - before.peer,
            self._busy_bytes() - busy_bytes,
            len(self._busy()),
        )

    def _used(self) -> tuple[int, int, int]:
        rack_of = self._tree.rack_of
        racks = {(rack_of(host), image_id) for host, image_id in self._deliveries}
        return len({image_id for _, image_id in racks}), len(racks), len(self._deliveries)

    def delivery_to(
        self, host: cloud.SimulatedHost, image: boot_traces.TracedImage
    ) -> image_delivery.Delivery:
        key = host.number, image.image_id
        if key not in self._deliveries:
            made = self._how.delivery(host, image, self._scenario.sizes, self._note_cached)
            self._deliveries[key] = made
        return self._deliveries[key]

    def _is_running(self) -> bool:
        to_come = len(self._deliveries) if self._how.delivery.continues_after_boot else 0
        return len(self._booted_s) < len(self._guests) or len(self._whole_s) < to_come

    def _note_cached(self, after_s: float) -> None:
        self._whole_s.append(after_s)
        self._stop_if_done()

    def note_boot(self, guest: guests.Guest, ready_s: float, booted_s: float) -> None:
        if guest in self._later:
            self._later_s.append(booted_s)
        self._rates.append(guest.used_bytes / max(booted_s, 1e-9))
        self._ready_s.append(ready_s)
        self._booted_s.append(booted_s)
        self._progress(len(self._booted_s))
        self._stop_if_done()

    def _stop_if_done(self) -> None:
        if not self._is_running():
            self._world.agenda.stop()

    def _others_s(self, host: int) -> float:
        return sum(link.others for link in self._nic(host))

    def _collect(self) -> None:
        numbers = range(len(self._hosts))
        now = [sum(link.chunk_bytes for link in self._nic(host)) for host in numbers]
        self._traffic_cv.append(
            background_traffic.cv_of(
                [
                    self._others_s(host) + (now[host] - self._before[host]) / COLLECTION_S
                    for host in numbers
                ]
            )
        )
        self._before = now
        self._collections += 1
        former, figures = self._table.ring, [self._figures(host) for host in numbers]
        table = self._table.end_collection(self._collections, figures, COLLECTION_S)
        if table is not None:
            for host in self._hosts:
                host.take_table(table, former)
        self._world.agenda.schedule_after(COLLECTION_S, self._collect)

    def _figures(self, host: int) -> ring_tables.Figures:
        waited = self._hosts[host].pop_waits()
        source = waited.pop(None, decision_messages.TimedTraffic())
        peers = {name: timed for name, timed in waited.items() if name is not None}
        return ring_tables.Figures(self._others[host], peers, source)

    def _nic(self, host: int) -> tuple[network.NetworkLink, network.NetworkLink]:
        sent, received = self._tree.host_links(host)
        return received, sent
