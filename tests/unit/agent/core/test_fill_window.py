# SPDX-License-Identifier: Apache-2.0
"""How many chunks a fill has in flight."""

import math

import pytest

from acstor_agent.core.images import fill_window

CHUNK = 64 * 1024


def test_slow_start_doubles_until_the_rate_is_that_of_the_link():
    slow_start, now_s, limits = fill_window.SlowStart(8), 0.0, []
    slow_start.begin_round(now_s)
    while slow_start.limit:
        limits.append(slow_start.limit)
        now_s += max(0.2, slow_start.limit / 1000)  # a round trip, or what the link needs
        slow_start.count_arrived(slow_start.limit, now_s)
    assert limits == [8, 16, 32, 64, 128, 256, 512, 1024, 2048]
    slow_start.count_arrived(8, now_s + 1)
    assert slow_start.limit == 0


def test_pause_of_a_fill_does_not_end_its_slow_start():
    slow_start, now_s = fill_window.SlowStart(8), 0.0
    for _ in range(6):
        slow_start.begin_round(now_s)
        slow_start.count_arrived(slow_start.limit, now_s + 0.2)
        now_s += 1000.0
    assert slow_start.limit == 8 * 2**6


@pytest.mark.parametrize(("hosts", "chunks"), [(1, 128), (4, 32), (1000, fill_window.FEW)])
def test_hosts_share_what_fills_beside_guests_of_a_far_source_have_in_flight(hosts, chunks):
    route = fill_window.Route(0.1, is_far=True, bytes_s=math.inf, hosts=hosts)
    slow_start = fill_window.SlowStart(fill_window.FEW)
    beside, alone = (
        fill_window.most_bytes(slow_start, route, math.inf, CHUNK, is_beside_guests=is_beside)
        for is_beside in (True, False)
    )
    assert (beside, alone) == (chunks * CHUNK, fill_window.MOST_BYTES)


def test_round_ends_when_as_many_arrived_as_it_allowed_at_its_start():
    slow_start = fill_window.SlowStart(8)
    slow_start.begin_round(0.0)
    for n in range(1, 8):
        slow_start.count_arrived(1, 0.1 * n)
        assert slow_start.limit == 8 + n
    for now_s in (1.0, 2.0, 3.0, 4.0):
        slow_start.count_arrived(slow_start.limit, now_s)
    assert slow_start.limit == 15 * 2**4
    for now_s in (1e3, 1e4, 1e5):
        slow_start.count_arrived(slow_start.limit, now_s)
    assert slow_start.limit == 0


@pytest.mark.parametrize(("is_far", "chunks"), [(True, 100), (False, fill_window.FEW)])
def test_only_a_fill_of_a_far_source_starts_slowly(is_far, chunks):
    route = fill_window.Route(0.1 if is_far else 0.001, is_far, bytes_s=math.inf, hosts=1)
    slow_start = fill_window.SlowStart(100)
    alone = fill_window.most_bytes(slow_start, route, 0.0, CHUNK, is_beside_guests=False)
    assert alone == chunks * CHUNK


def test_fill_beside_guests_has_in_flight_what_its_rate_carries_in_a_round_trip():
    route = fill_window.Route(0.1, is_far=True, bytes_s=20 * CHUNK, hosts=1)
    slow_start = fill_window.SlowStart(100)
    beside = fill_window.most_bytes(slow_start, route, math.inf, CHUNK, is_beside_guests=True)
    assert beside == 2 * CHUNK
