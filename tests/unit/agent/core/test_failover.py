# SPDX-License-Identifier: Apache-2.0
"""Failover among simulated sources with random responses and delays."""

import random
import types

import pytest

from acstor_agent.core.sources import failover
from acstor_agent.core.sources import source_request
from acstor_common import errors
from acstor_common.model import ids
from tests.fakes import manual_clock

IMAGE = ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
KINDS = (
    errors.SourceUnreachable,
    errors.SourceOverloaded,
    errors.ChunkInvalid,
    errors.SourceRefused,
    errors.ChunkRefused,
    errors.ChunkMissing,
)


def to_ask(known, key, now, ignores_refusals):
    return known.ordered_sources(now) if ignores_refusals else known.sources_of(key, now)


def log_of(lines):
    """Return a logger that appends to a list."""
    return types.SimpleNamespace(warning=lines.append, info=lines.append)


def pieces(count, key, has_copies):
    return types.SimpleNamespace(
        key=key, image_id=IMAGE, count=count, describe_piece=str, may_copy=lambda: has_copies
    )


class World:
    """Sources with random behaviour, and sequential requests to them."""

    def __init__(self, seed):
        self.rng, self.now, self.lines = random.Random(seed), 0.0, []
        states = [
            failover.SourceState(types.SimpleNamespace(location=f"s{n}"))
            for n in range(self.rng.randint(1, 3))
        ]
        log = log_of(self.lines)
        self.failover = failover.Failover(
            states, self.rng.random, manual_clock.FunctionClock(lambda: self.now), log
        )
        self.has_copies = self.rng.random() < 0.5

    def outcome(self, source, number):
        if self.rng.random() < 0.6:
            return b"%d" % number
        return self.rng.choice(KINDS)("a piece", source.location, "by order")

    def request(self):
        """Make a request, check it at each step, and return its data and failures."""
        rng, count = self.rng, self.rng.randint(1, 6)
        deadline_s = self.now + rng.choice([1.0, 1e6])
        request = source_request.SourceRequest(
            *(self.failover, pieces(count, "key", self.has_copies)),
            *(deadline_s, to_ask(self.failover, "key", self.now, rng.random() < 0.3)),
        )
        reported, tries, waiting = {}, {}, {}  # by attempt: the end of its pause
        failures = {}
        while True:
            if (attempt := request.next_attempt(self.now)) is not None:
                waiting[attempt] = self.now
                failures.update(request.final_failures(attempt))
            assert request.next_s(self.now) > self.now
            if request.is_over:
                break
            self.now += rng.choice([0.0, 0.1, 3.0])
            self._step(request, rng.choice(list(waiting)), waiting, reported, tries, failures)
        failures.update(request.list_failures())
        request.close()
        assert sorted([*reported, *failures]) == list(range(count))
        assert all(n < failover.ATTEMPTS for n in tries.values())
        assert tries.get(self.failover.copies, 0) == 0
        assert self.has_copies or self.failover.copies not in tries
        for source in (*self.failover.sources, self.failover.copies):
            assert source.breaker._waiting == 0 and not source.is_hedged
        return reported, failures

    def _step(self, request, attempt, waiting, reported, tries, failures):
        """Advance one attempt: it begins, reports some pieces, ends, or is cancelled."""
        if waiting[attempt] is not None:
            if waiting[attempt] > self.now:
                return
            waiting[attempt] = None
            if not request.begin_attempt(attempt):
                self._leave(request, attempt, waiting)
                return
            assert attempt.numbers == sorted(attempt.numbers)  # adjacent pieces stay adjacent
            tries[attempt.source] = attempt.tries
        elif attempt.unreported and self.rng.random() < 0.8:
            some = self.rng.sample(
                sorted(attempt.unreported), self.rng.randint(1, len(attempt.unreported))
            )
            numbers = attempt.numbers
            answers = [(at, self.outcome(attempt.source, numbers[at])) for at in some]
            for number, outcome in request.record_outcomes(attempt, answers, self.now):
                assert number not in reported and number not in failures
                if isinstance(outcome, bytes):
                    assert outcome == b"%d" % number
                    reported[number] = outcome
                else:
                    assert attempt.source is self.failover.copies
                    failures[number] = outcome
        elif (pause_s := request.attempt_ended(attempt, self.now)) is None:
            self._leave(request, attempt, waiting)
        else:
            assert 0.05 <= pause_s <= 0.2
            waiting[attempt] = self.now + pause_s

    def _leave(self, request, attempt, waiting):
        request.end_attempt(attempt)
        del waiting[attempt]


@pytest.mark.parametrize("first", range(0, 1000, 250))
def test_each_piece_is_reported_once_under_random_source_behaviour(first):
    is_copied = is_down = is_hopeless = 0
    for seed in range(first, first + 250):
        world = World(seed)
        for _ in range(5):
            _, failures = world.request()
            is_hopeless += any(type(e) is errors.ChunkMissing for e in failures.values())
        is_copied += bool(world.failover.refused)
        is_down += any("does not answer" in line for line in world.lines)
    assert is_copied and is_down and is_hopeless  # all three cases occurred


# Sequential requests


def sources(count=1, **limits):
    """Return the state of some sources, and the lines that it logs."""
    places = [types.SimpleNamespace(location=f"s{n}") for n in range(count)]
    states, lines = [*map(failover.SourceState, places)], []
    log = log_of(lines)
    return failover.Failover(
        states, lambda: 0.0, manual_clock.FunctionClock(lambda: 0.0), log, **limits
    ), lines


def fault(kind, where="s0"):
    return kind("a piece", where, "by order")


def ask(known, outcomes, *, copies=None, key="key", ignores_refusals=False):
    """Request pieces from sources that respond at once; return the failures.

    :param outcomes: of the pieces at any source
    :param copies: their outcomes at the copies; None: there are none
    """
    wanted = pieces(len(outcomes), key, copies is not None)
    first = to_ask(known, key, 0.0, ignores_refusals)
    request = source_request.SourceRequest(known, wanted, float("inf"), first)
    failures = {}
    while (attempt := request.next_attempt(0.0)) is not None:
        failures.update(request.final_failures(attempt))
        found = copies if attempt.source is known.copies else outcomes
        while request.begin_attempt(attempt):
            reported = [(at, found[number]) for at, number in enumerate(attempt.numbers)]
            for one in reported:
                final = request.record_outcomes(attempt, [one], 0.0)
                failures.update((n, why) for n, why in final if not isinstance(why, bytes))
            if request.attempt_ended(attempt, 0.0) is None:
                break
        request.end_attempt(attempt)
    request.close()
    return failures | dict(request.list_failures())


def test_copies_are_tried_last_for_pieces_that_sources_refuse():
    known, _ = sources(2)
    refused, missing = fault(errors.ChunkRefused), fault(errors.ChunkMissing)
    assert ask(known, [refused, missing]).keys() == {0, 1} and not known.refused
    assert ask(known, [missing], copies=[b"not asked"]).keys() == {0} and not known.refused
    last = fault(errors.SourceUnreachable, "copies")
    failures = ask(known, [refused, missing, refused], copies=[last, None, b"given"])
    assert failures[0] is last and type(failures[1]) is errors.ChunkMissing
    assert failures.keys() == {0, 1} and known.refused


def test_refused_keys_are_bounded():
    known, _ = sources(refused_limit=3)
    for key in range(9):
        ask(known, [fault(errors.ChunkRefused)], copies=[b"given"], key=key)
    assert list(known.refused) == [6, 7, 8]


def test_unreachable_failure_counts_although_another_piece_was_missing():
    known, _ = sources()
    ask(known, [fault(errors.ChunkMissing), fault(errors.SourceUnreachable)])
    assert known.fault_of(known.sources[0]).why == "by order"


def test_refusal_is_reported_until_the_source_delivers_a_piece():
    known, lines = sources()
    ask(known, [fault(errors.SourceRefused)])
    assert known.fault_of(known.sources[0]).why == "by order"
    assert lines == ["Source s0 refuses a piece: by order"]
    ask(known, [b"given"])
    assert known.fault_of(known.sources[0]) is None


@pytest.mark.parametrize("last", [b"given", fault(errors.ChunkMissing)])
def test_each_response_is_recorded_once_as_latency(last):
    known, _ = sources()
    ask(known, [b"given", last])
    assert len(known.hedge._latest_s) == 2
