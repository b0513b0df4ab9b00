# SPDX-License-Identifier: Apache-2.0
import pytest

from acstor_simulator.model import network

MB = 1_000_000
CHUNK = 64 * 1024


def run(*sendings: tuple[list[network.NetworkLink], float]) -> list[float]:
    """Send one chunk along each way, beginning at its time; return when each was there."""
    agenda = network.EventQueue()
    arrived = [0.0] * len(sendings)

    def note(number: int) -> None:
        arrived[number] = agenda.now

    for number, (way, begin_s) in enumerate(sendings):
        agenda.schedule_after(begin_s, network.send, agenda, way, CHUNK, 0.0, note, number)
    agenda.run(until_s=60.0)
    return arrived


def test_things_of_one_moment_happen_in_the_order_of_their_coming() -> None:
    agenda, seen = network.EventQueue(), list[str]()
    agenda.schedule_after(1.0, seen.append, "first")
    agenda.schedule_after(1.0, seen.append, "second")
    agenda.schedule_after(0.5, agenda.schedule_after, 0.5, seen.append, "third")
    agenda.run(until_s=1.0)
    assert seen == ["first", "second", "third"]


def test_who_stops_the_agenda_is_the_last_to_be_called() -> None:
    agenda, seen = network.EventQueue(), list[str]()
    agenda.schedule_after(1.0, agenda.stop)
    agenda.schedule_after(1.0, seen.append, "too late")
    agenda.run(until_s=2.0)
    assert (seen, agenda.now) == ([], 1.0)


def test_chunk_takes_its_bytes_over_the_rate_that_others_leave() -> None:
    link = network.NetworkLink("a", 10 * MB, others=6 * MB)
    assert run(([link], 0.0)) == [pytest.approx(CHUNK / (4 * MB))]


def test_traffic_of_others_never_takes_the_whole_link() -> None:
    link = network.NetworkLink("a", 10 * MB, others=50 * MB)
    assert run(([link], 0.0)) == [pytest.approx(CHUNK / (10 * MB * network.MIN_CHUNK_SHARE))]


def test_way_is_as_fast_as_its_slowest_link_and_not_the_sum() -> None:
    way = [
        network.NetworkLink("a", 100 * MB),
        network.NetworkLink("b", 10 * MB),
        network.NetworkLink("c", 100 * MB),
    ]
    [took] = run((way, 0.0))
    assert CHUNK / (10 * MB) <= took < 1.05 * CHUNK / (10 * MB)


def test_chunks_leave_a_link_one_after_the_other_in_the_order_they_came() -> None:
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
