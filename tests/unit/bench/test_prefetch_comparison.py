# SPDX-License-Identifier: Apache-2.0
"""Comparison of prefetch predictors: hits, waste, and waits."""

import pytest

from acstor_agent.core.images import readahead
from evaluation.bench import s1_prefetch

CHUNK = s1_prefetch.CHUNK
BRING_S = CHUNK / s1_prefetch.LINK_BYTES_S


class Oracle:
    """Requests one range at the first read."""

    def __init__(self, start, stop):
        self._range = (start * CHUNK, stop * CHUNK)

    def predict_range(self, offset, length, now_s):
        found, self._range = self._range, (0, 0)
        return found


def reads(*chunks, think_s=1.0):
    return [s1_prefetch.Read(think_s, chunk_no * CHUNK, CHUNK) for chunk_no in chunks]


def test_every_chunk_is_waited_for_once_without_a_predictor():
    outcome = s1_prefetch.play(reads(1, 2, 1), readahead.ReadAhead(0))
    assert (outcome.chunks, outcome.hits, outcome.fetched, outcome.unread) == (2, 0, 2, 0)
    assert outcome.waited_s == pytest.approx(2 * (BRING_S + s1_prefetch.ROUND_TRIP_S))


def test_prefetched_read_chunk_is_a_hit_and_an_unread_one_is_waste():
    outcome = s1_prefetch.play(reads(0, 2), Oracle(1, 4))
    assert (outcome.hits, outcome.fetched, outcome.unread) == (1, 4, 2)
    assert outcome.waste_share == 0.5
    assert outcome.waited_s == pytest.approx(BRING_S + s1_prefetch.ROUND_TRIP_S)


def test_read_overtakes_prefetches_except_the_chunk_in_flight():
    outcome = s1_prefetch.play(reads(0, 100, think_s=0.0), Oracle(1, 50))
    assert outcome.hits == 0
    assert outcome.waited_s <= 3 * BRING_S + 2 * s1_prefetch.ROUND_TRIP_S + 1e-9


@pytest.mark.parametrize("name", s1_prefetch.READERS)
def test_reads_of_guests_are_reproducible(name):
    first, again = (list(s1_prefetch.reads_of((name,))) for _ in range(2))
    assert first == again
    assert first
