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
