# SPDX-License-Identifier: Apache-2.0
"""vNavigator's units as a read-ahead policy: whole zones, each once, in densely read areas."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.core.disk_scheduling import navigator
from acstor_policies import unit_readahead

MIB = 1 << 20
ZONE = navigator.ZONE_BYTES
READS = st.lists(
    st.tuples(st.integers(0, 50 * ZONE), st.integers(0, MIB), st.floats(0, 0.1)), max_size=60
)


def test_unit_is_the_read_zone_and_the_next_one():
    ahead = unit_readahead.UnitReadahead(8 * MIB)
    assert ahead.predict_range(10 * ZONE + 4096, 4096, 0.0) == (10 * ZONE, 12 * ZONE)


def test_next_unit_requests_only_new_zones():
    ahead = unit_readahead.UnitReadahead(8 * MIB)
    ahead.predict_range(10 * ZONE, 4096, 0.0)
    assert ahead.predict_range(11 * ZONE, 4096, 0.001) == (12 * ZONE, 13 * ZONE)
    assert ahead.predict_range(9 * ZONE, 4096, 0.002) == (9 * ZONE, 10 * ZONE)


def test_sparsely_read_zone_starts_no_read_ahead():
    ahead = unit_readahead.UnitReadahead(8 * MIB)
    for number in range(20):
        ahead.predict_range(number * 4096, 4096, 0.0)
    assert ahead.predict_range(40 * ZONE, 4096, 0.0) == (0, 0)


@pytest.mark.parametrize(("offset", "length", "limit"), [(0, 4096, 0), (0, 0, MIB)])
def test_empty_read_or_disabled_read_ahead_requests_nothing(offset, length, limit):
    assert unit_readahead.UnitReadahead(limit).predict_range(offset, length, 0.0) == (0, 0)


def test_limit_is_rounded_to_whole_zones():
    assert unit_readahead.UnitReadahead(ZONE + 1).predict_range(0, 4096, 0.0) == (0, ZONE)
    assert unit_readahead.UnitReadahead(1).predict_range(0, 4096, 0.0) == (0, ZONE)  # rounded up


@given(READS)
def test_no_zone_is_requested_twice(reads):
    ahead, now_s, asked = unit_readahead.UnitReadahead(8 * MIB), 0.0, []
    for offset, length, pause_s in reads:
        now_s += pause_s
        start, stop = ahead.predict_range(offset, length, now_s)
        assert start % ZONE == stop % ZONE == 0
        assert 0 <= stop - start <= 2 * ZONE
        asked += range(start // ZONE, stop // ZONE)
    assert len(asked) == len(set(asked))


def test_memory_is_bounded():
    ahead, rng = unit_readahead.UnitReadahead(8 * MIB), random.Random(1)
    for number in range(5000):
        ahead.predict_range(rng.randrange(1 << 44), 4096, number * 0.01)
    assert len(ahead._requested) <= navigator.ZONE_LIMIT
    assert len(ahead._navigator) <= navigator.ZONE_LIMIT
