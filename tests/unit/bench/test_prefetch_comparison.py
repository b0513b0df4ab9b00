# SPDX-License-Identifier: Apache-2.0
"""How the predictors of prefetch are compared: what is a hit, what is waste, who waits for what."""

import pytest

from acstor_agent.core.images import readahead
from evaluation.bench import s1_prefetch

CHUNK = s1_prefetch.CHUNK
BRING_S = CHUNK / s1_prefetch.LINK_BYTES_S


class Oracle:
    """Asks for one range at the first read."""

    def __init__(self, start, stop):
        self._range = (start * CHUNK, stop * CHUNK)

    def record_read(self, offset, length, now_s):
        found, self._range = self._range, (0, 0)
        return found


def reads(*chunks, think_s=1.0):
    return [s1_prefetch.Read(think_s, chunk_no * CHUNK, CHUNK) for chunk_no in chunks]


def test_without_a_predictor_every_chunk_is_waited_for_once():
    outcome = s1_prefetch.play(reads(1, 2, 1), readahead.ReadAhead(0))
    assert (outcome.chunks, outcome.hits, outcome.fetched, outcome.unread) == (2, 0, 2, 0)
    assert outcome.waited_s == pytest.approx(2 * (BRING_S + s1_prefetch.ROUND_TRIP_S))


def test_what_came_ahead_is_a_hit_and_what_nobody_read_is_waste():
    outcome = s1_prefetch.play(reads(0, 2), Oracle(1, 4))
    assert (outcome.hits, outcome.fetched, outcome.unread) == (1, 4, 2)
    assert outcome.waste_share == 0.5
    assert outcome.waited_s == pytest.approx(BRING_S + s1_prefetch.ROUND_TRIP_S)


def test_reader_goes_before_what_is_fetched_ahead_but_waits_for_the_chunk_on_the_link():
    outcome = s1_prefetch.play(reads(0, 100, think_s=0.0), Oracle(1, 50))
    assert outcome.hits == 0
    assert outcome.waited_s <= 3 * BRING_S + 2 * s1_prefetch.ROUND_TRIP_S + 1e-9


@pytest.mark.parametrize("name", s1_prefetch.READERS)
def test_guests_read_the_same_whenever_they_are_asked(name):
    first, again = (list(s1_prefetch.reads_of((name,))) for _ in range(2))
    assert first == again
    assert first
