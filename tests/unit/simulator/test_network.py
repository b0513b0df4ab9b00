# SPDX-License-Identifier: Apache-2.0
import pytest

from acstor_simulator.model import network

MB = 1_000_000
CHUNK = 64 * 1024


def run(*sendings: tuple[list[network.NetworkLink], float]) -> list[float]:
    """Send one chunk along each path, starting at its time; return the arrival times."""
    agenda = network.EventQueue()
    arrived = [0.0] * len(sendings)

    def note(number: int) -> None:
        arrived[number] = agenda.now

    for number, (way, begin_s) in enumerate(sendings):
        agenda.schedule_after(begin_s, network.send, agenda, way, CHUNK, 0.0, note, number)
    agenda.run(until_s=60.0)
    return arrived


def test_simultaneous_events_run_in_the_order_of_scheduling() -> None:
    agenda, seen = network.EventQueue(), list[str]()
    agenda.schedule_after(1.0, seen.append, "first")
    agenda.schedule_after(1.0, seen.append, "second")
    agenda.schedule_after(0.5, agenda.schedule_after, 0.5, seen.append, "third")
    agenda.run(until_s=1.0)
    assert seen == ["first", "second", "third"]


def test_event_that_stops_the_queue_is_the_last_one() -> None:
    agenda, seen = network.EventQueue(), list[str]()
    agenda.schedule_after(1.0, agenda.stop)
    agenda.schedule_after(1.0, seen.append, "too late")
    agenda.run(until_s=2.0)
    assert (seen, agenda.now) == ([], 1.0)


def test_chunk_takes_its_bytes_divided_by_the_free_rate() -> None:
    link = network.NetworkLink("a", 10 * MB, others=6 * MB)
    assert run(([link], 0.0)) == [pytest.approx(CHUNK / (4 * MB))]


def test_background_traffic_never_takes_the_whole_link() -> None:
    link = network.NetworkLink("a", 10 * MB, others=50 * MB)
    assert run(([link], 0.0)) == [pytest.approx(CHUNK / (10 * MB * network.MIN_CHUNK_SHARE))]


def test_path_is_as_fast_as_its_slowest_link() -> None:
    way = [
        network.NetworkLink("a", 100 * MB),
        network.NetworkLink("b", 10 * MB),
        network.NetworkLink("c", 100 * MB),
    ]
    [took] = run((way, 0.0))
    assert CHUNK / (10 * MB) <= took < 1.05 * CHUNK / (10 * MB)


def test_chunks_leave_a_link_in_order_of_arrival() -> None:
    link = network.NetworkLink("a", 10 * MB)
    one_s = CHUNK / (10 * MB)
    assert run(([link], 0.0), ([link], 0.001), ([link], 0.002)) == [
        pytest.approx(one_s),
        pytest.approx(2 * one_s),
        pytest.approx(3 * one_s),
    ]


def test_link_never_carries_more_than_its_capacity() -> None:
    link = network.NetworkLink("a", 10 * MB)
    arrived = run(*(([link], 0.0005 * n) for n in range(50)))
    assert 50 * CHUNK / max(arrived) <= 10 * MB * 1.000001
    assert link.chunk_bytes == 50 * CHUNK
