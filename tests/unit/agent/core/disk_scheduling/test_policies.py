# SPDX-License-Identifier: Apache-2.0
"""Invariants of all scheduling policies, and properties of each."""

import itertools
import random
from collections.abc import Callable

import hypothesis
import pytest
from hypothesis import strategies as st

from acstor_agent.core.disk_scheduling import policy as policies
from acstor_agent.core.disk_scheduling import pregather
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.disk_scheduling import scheduler
from acstor_policies import cfq
from acstor_policies import disk_schedulers

SIZE = 10**12
GB = 10**9
Make = Callable[[], policies.SchedulingPolicy]
POLICIES = disk_schedulers.SCHEDULERS
every_policy = pytest.mark.parametrize("make", POLICIES.values(), ids=POLICIES)


def stream(name: str, klass: requests.Klass = requests.Klass.GUEST) -> requests.Stream:
    return requests.Stream(klass, name)


def read(name: str, offset: int, length: int = 4096) -> requests.DiskRequest:
    return requests.DiskRequest(stream(name), offset, length)


class Disk:
    """A disk that serves each request in 2 ms, and advances the time while the policy waits."""

    def __init__(self, policy: policies.SchedulingPolicy) -> None:
        self.scheduler = scheduler.Scheduler(policy, SIZE)
        self.now_s = 0.0
        self.served: list[requests.DiskRequest] = []

    def submit(self, *items: requests.DiskRequest) -> None:
        for item in items:
            self.scheduler.submit_request(item, self.now_s)

    def serve_one(self) -> requests.DiskRequest | None:
        """Serve the next request, after a wait if need be; None if none is pending."""
        for _ in range(1000):
            found = self.scheduler.pick_request(self.now_s)
            if found is not None:
                self.now_s += 0.002
                self.scheduler.request_completed(found, self.now_s)
                self.served.append(found)
                return found
            wakes_s = self.scheduler.next_timeout()
            if wakes_s is None:
                assert not len(self.scheduler)
                return None
            assert wakes_s >= self.now_s
            self.now_s = max(self.now_s + 1e-6, wakes_s)
        raise AssertionError("the policy keeps the disk idle for ever")

    def drain(self) -> None:
        while self.serve_one() is not None:
            pass


@every_policy
@hypothesis.given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.integers(0, 1000),
            st.booleans(),
            st.sampled_from(list(requests.Klass)),
            st.sampled_from(["serve", "give up", "nothing", "wait"]),
        ),
        max_size=60,
    )
)
def test_every_request_is_served_or_cancelled_exactly_once(
    make: Make, steps: list[tuple[str, int, bool, requests.Klass, str]]
) -> None:
    disk = Disk(make())
    sent: list[requests.DiskRequest] = []
    given_up: list[requests.DiskRequest] = []
    for name, place, is_write, klass, action in steps:
        sent.append(requests.DiskRequest(stream(name, klass), place * 1_000_000, 4096, is_write))
        disk.submit(sent[-1])
        if action == "serve":
            disk.serve_one()
        elif action == "wait":
            disk.now_s += 0.3
        elif action == "give up" and disk.scheduler.cancel_request(sent[place % len(sent)]):
            given_up.append(sent[place % len(sent)])
    disk.drain()
    assert sorted(map(id, disk.served + given_up)) == sorted(map(id, sent))
    assert not len(disk.scheduler)


@every_policy
def test_stream_does_not_starve_behind_an_endless_reader(make: Make) -> None:
    disk = Disk(make())
    victim = read("victim", 900 * GB)
    disk.submit(*(read("greedy", number * 4096) for number in range(8)), victim)
    for number in itertools.count(8):
        disk.serve_one()
        if victim in disk.served:
            break
        disk.submit(read("greedy", number * 4096))
        assert disk.now_s < 2.0


@every_policy
def test_request_does_not_starve_within_its_stream(make: Make) -> None:
    disk = Disk(make())
    victim = read("guest", 5 * GB)
    disk.submit(*(read("guest", 9 * GB + number * 4096) for number in range(8)), victim)
    for number in itertools.count(8):
        disk.serve_one()
        if victim in disk.served:
            break
        disk.submit(read("guest", 9 * GB + number * 4096))
        assert disk.now_s < 2.0


@every_policy
def test_policy_change_under_load_loses_no_request(make: Make) -> None:
    for other in POLICIES.values():
        disk = Disk(make())
        rng = random.Random(1)
        sent = [read(rng.choice("abc"), rng.randrange(SIZE - 4096)) for _ in range(50)]
        disk.submit(*sent)
        for _ in range(10):
            disk.serve_one()
        in_flight = disk.scheduler.pick_request(disk.now_s)
        disk.scheduler.change_policy(other())
        if in_flight is not None:
            disk.scheduler.request_completed(in_flight, disk.now_s)
            disk.served.append(in_flight)
        disk.drain()
        assert sorted(map(id, disk.served)) == sorted(map(id, sent))


@every_policy
def test_thousands_of_streams_are_all_served(make: Make) -> None:
    disk = Disk(make())
    for number in range(3000):
        disk.submit(read(f"guest {number}", number * 1_000_000))
    disk.drain()
    assert len(disk.served) == 3000
    assert len(disk.scheduler.account.streams) == scheduler.STREAM_LIMIT + 1


@every_policy
def test_requests_are_served_despite_a_backward_clock(make: Make) -> None:
    disk = Disk(make())
    disk.now_s = 100.0
    disk.submit(read("a", 0))
    disk.now_s = 1.0
    disk.submit(read("b", GB))
    assert disk.scheduler.pick_request(0.5) is not None
    disk.now_s = 101.0
    disk.drain()
    assert not len(disk.scheduler)


@every_policy
def test_overlapping_requests_are_all_served(make: Make) -> None:
    disk = Disk(make())
    disk.submit(read("a", 0, 8192), read("b", 4096, 8192), read("a", 0, 8192))
    disk.drain()
    assert len(disk.served) == 3


@every_policy
def test_other_streams_are_served_after_one_is_cancelled(make: Make) -> None:
    disk = Disk(make())
    disk.submit(*(read(name, number * GB) for name in "ab" for number in range(5)))
    disk.serve_one()
    gone = list(disk.scheduler._waiting[stream("a")])
    assert all(map(disk.scheduler.cancel_request, gone))
    disk.drain()
    assert {request.stream for request in gone} == {stream("a")}
    assert len(gone) + len(disk.served) == 10


@pytest.mark.parametrize(("offset", "length"), [(0, 0), (0, -1), (-1, 10), (SIZE - 5, 10)])
def test_invalid_range_is_refused(offset: int, length: int) -> None:
    found = scheduler.Scheduler(policies.Fifo(), SIZE)
    with pytest.raises(scheduler.BadRequest):
        found.submit_request(read("a", offset, length), 0.0)
    assert not len(found)


LATER = [klass for klass in requests.Klass if klass is not requests.Klass.GUEST]


@pytest.mark.parametrize("klass", LATER)
def test_other_classes_wait_for_guests_but_not_past_their_deadline(klass: requests.Klass) -> None:
    disk = Disk(pregather.Pregather())
    behind = requests.DiskRequest(stream("later", klass), 10**6, 4096)
    disk.submit(behind, read("guest", 500 * GB))
    assert disk.serve_one() is not behind
    for number in range(1, 1000):
        disk.submit(read(f"guest {number % 3}", 500 * GB + number * 4096))
        disk.serve_one()
        if behind in disk.served:
            break
    assert requests.READ_EXPIRE_S < disk.now_s < 2.0


def test_classes_are_served_in_order_of_priority() -> None:
    disk = Disk(pregather.Pregather())
    for klass in reversed(requests.Klass):
        disk.submit(requests.DiskRequest(stream(klass.name, klass), klass * GB, 4096))
    disk.drain()
    assert [request.stream.klass for request in disk.served] == list(requests.Klass)


def test_streams_are_served_by_distance_once_per_round() -> None:
    disk = Disk(pregather.Pregather())
    places = {"c": 30, "a": 10, "d": 40, "b": 20}
    disk.submit(
        *(read(name, at * GB + n * GB // 100) for name, at in places.items() for n in (1, 2))
    )
    disk.drain()
    order = [request.stream.name for request in disk.served]
    assert order == list("aabbccdd")


def lone_reader() -> tuple[Disk, int]:
    """Return a disk with one stream that reads every 5 ms in order, and its next offset."""
    disk = Disk(pregather.Pregather())
    for number in range(50):
        disk.submit(read("a", number * 4096))
        disk.drain()
        disk.now_s += 0.005
    return disk, 50 * 4096


def test_two_sequential_requests_do_not_cause_idling() -> None:
    """Random readers read an indirect block of a file and its data, and then stop."""
    disk = Disk(pregather.Pregather())
    disk.submit(*(read("guest", (100 + number) * GB) for number in range(20)))
    for number in range(1, 20):
        disk.submit(read("guest", number * GB))
        disk.serve_one()
        disk.submit(read("guest", number * GB + 65536))
        disk.serve_one()
    disk.drain()
    ends = disk.scheduler.account.waits
    assert ends["expired"] == ends["expired_alone"] == 0


def waits_of_next(disk: Disk, *coming: requests.DiskRequest) -> dict[str, int]:
    before = disk.scheduler.account.waits
    disk.submit(*coming)
    disk.serve_one()
    return {
        end: n - before[end] for end, n in disk.scheduler.account.waits.items() if n - before[end]
    }


def test_idle_wait_without_other_requests_is_counted_separately() -> None:
    disk, next_place = lone_reader()
    assert waits_of_next(disk, read("a", next_place)) == {"met_alone": 1}
    disk.scheduler.pick_request(disk.now_s)
    disk.now_s += 1.0
    assert waits_of_next(disk, read("a", next_place + 4096)) == {"expired_alone": 1}


def test_idle_wait_that_delays_another_stream_counts_as_expired() -> None:
    disk, _ = lone_reader()
    disk.now_s -= 0.005  # the reader's next request is not due yet
    disk.scheduler.pick_request(disk.now_s)
    assert waits_of_next(disk, read("b", 900 * GB)) == {"expired": 1}


def test_seeks_waits_and_latency_are_counted_by_stream() -> None:
    disk = Disk(policies.Fifo())
    disk.submit(read("a", 0), read("a", 4096), read("b", 100 * GB), read("a", 100 * GB + GB))
    disk.drain()
    account = disk.scheduler.account
    assert account.seeks == {"zero": 1, "near": 1, "far": 1}
    mine = account.streams[stream("a")]
    assert (mine.requests, mine.bytes, mine.slices) == (3, 3 * 4096, 2)
    assert mine.latency.longest_s == pytest.approx(0.008)


def test_latest_streams_are_counted_separately_and_totals_are_kept() -> None:
    disk = Disk(policies.Fifo())
    for number in range(2 * scheduler.STREAM_LIMIT):
        disk.submit(read(f"guest {number}", number * GB), read("who stays", number * GB + 8192))
        disk.drain()
    streams = disk.scheduler.account.streams
    assert len(streams) == scheduler.STREAM_LIMIT + 1
    assert stream("guest 0") not in streams
    assert streams[stream(f"guest {2 * scheduler.STREAM_LIMIT - 1}")].requests == 1
    assert streams[stream("who stays")].requests == 2 * scheduler.STREAM_LIMIT
    total = sum(count.latency.count for count in streams.values())
    assert total == sum(count.requests for count in streams.values()) == len(disk.served)


def test_cfq_forgets_idle_streams_under_load() -> None:
    policy = cfq.Cfq()
    disk = Disk(policy)
    for number in range(3000):
        disk.submit(read("who never stops", number * 4096), read(f"guest {number}", number * 10**7))
        disk.serve_one()
        disk.submit(read("who never stops", number * 4096 + GB))
        disk.serve_one()
        while len(disk.scheduler) > 8:
            disk.serve_one()
        assert len(policy._streams) <= cfq.MAX_IDLE_STREAMS + 32
    disk.drain()
