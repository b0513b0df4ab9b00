# SPDX-License-Identifier: Apache-2.0
"""One request for pieces to the sources: its attempts, retries and hedges.

A request asks the preferred source, retries after transient faults with a jittered pause ("equal
jitter", Brooker, 2015), then asks the next source for the missing pieces. When a source is silent
for longer than usual, the next one is asked as well, within a budget (``hedge``); after
SILENT_LONGEST_S one request to the silent source may exceed it.
"""

import math
from collections.abc import Collection
from collections.abc import Hashable
from collections.abc import Sequence
from typing import Any
from typing import Protocol

from acstor_agent.core.sources import failover
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.util import backoff

RETRY_FIRST_S, RETRY_LONGEST_S = 0.1, 2.0  # first and longest pause between tries
TICK_S = 0.25  # interval at which a request without hedge budget checks it again

_MOST_USEFUL_FIRST = (
    errors.SourceUnreachable,
    errors.ChunkInvalid,
    errors.SourceRefused,
    errors.ChunkRefused,
)

Answers = Sequence[tuple[int, Any]]
"""Outcomes of pieces, by number: bytes, or an :class:`errors.ChunkUnavailable`."""


class Attempt:
    """One source that a request asks, with retries after transient faults."""

    __slots__ = (
        *("began_s", "failures", "numbers", "source"),
        *("transient", "tries", "unreported", "wanted"),
    )

    def __init__(
        self, source: failover.SourceState, wanted: Collection[int] | None, began_s: float
    ) -> None:
        self.source, self.wanted, self.began_s = source, wanted, began_s
        self.tries = -1  # before the current one
        self.numbers: Sequence[int] = ()  # pieces of this try
        self.unreported: set[int] = set()  # indices of those without an outcome
        self.transient: dict[int, errors.ChunkUnavailable] = {}  # faults of this try
        self.failures: list[errors.ChunkUnavailable] = []


class WantedPieces(Protocol):
    """The pieces that a request reads."""

    @property
    def key(self) -> Hashable:
        """Key of the content; a refusal holds for all of it."""

    @property
    def image_id(self) -> ids.ImageId:
        """The image that it belongs to."""

    @property
    def count(self) -> int:
        """Number of pieces."""

    def describe_piece(self, number: int) -> str:
        """Return a piece in words."""

    def may_copy(self) -> bool:
        """Return whether the copies can give the key after all sources refused it."""


class SourceRequest:
    """Pieces to read from ``sources`` in order (none: all refused them); hedges ask several."""

    def __init__(
        self,
        source_failover: failover.Failover,
        wanted: WantedPieces,
        deadline_s: float,
        sources: list[failover.SourceState],
    ) -> None:
        self._failover, self._wanted, self._deadline_s = source_failover, wanted, deadline_s
        self.left = dict.fromkeys(range(wanted.count))  # numbers of the missing pieces
        self._sources, self._is_refused = sources, not sources
        self._is_copied = False
        self._in_flight: dict[Attempt, None] = {}
        self._hedged: list[failover.SourceState] = []
        self._winner: failover.SourceState | None = None
        self._failures: dict[int, list[errors.ChunkUnavailable]] = {}

    @property
    def may_hedge(self) -> bool:
        """Whether there is a second source."""
        return len(self._sources) > 1

    def next_attempt(self, now: float) -> Attempt | None:
        """Return an attempt to begin now, if any."""
        if not self.left:
            return None
        if self._sources:
            is_due = not self._in_flight or self._is_hedge_due(now)
            return self._start_attempt(self._sources.pop(0), None, now) if is_due else None
        return None if self._in_flight or self._is_copied else self._ask_copies(now)

    def next_s(self, now: float) -> float:
        """Return when to call :meth:`next_attempt` again without an outcome; inf: never."""
        if self._sources and self._in_flight:
            return max(self._late_s(), now + TICK_S)
        return math.inf

    @property
    def is_over(self) -> bool:
        """Whether no piece is missing, or no source is being asked."""
        return not self.left or not self._in_flight

    def begin_attempt(self, attempt: Attempt) -> bool:
        """Begin the next try of an attempt; return whether pieces are missing."""
        wanted = attempt.transient or attempt.wanted
        numbers = sorted(self.left if wanted is None else [n for n in wanted if n in self.left])
        attempt.numbers, attempt.unreported, attempt.transient = (
            numbers,
            set(range(len(numbers))),
            {},
        )
        attempt.tries += 1
        return bool(numbers)

    def record_outcomes(self, attempt: Attempt, answers: Answers, now: float) -> Answers:
        """Take outcomes by index in the attempt; return those that are final, by number."""
        is_last, final = attempt.source is self._failover.copies, []
        for at, outcome in answers:
            number = attempt.numbers[at]
            attempt.unreported.discard(at)
            if isinstance(outcome, errors.ChunkUnavailable) and not is_last:
                self._failed(attempt, number, outcome)
            elif number in self.left:
                del self.left[number]
                final.append((number, outcome))
        if not is_last:
            self._record_health(attempt, answers, bool(final), now)
        return final

    def final_failures(self, attempt: Attempt) -> list[tuple[int, errors.ChunkUnavailable]]:
        """Return the failures that are final when an attempt at the copies begins."""
        if attempt.source is not self._failover.copies or attempt.wanted is None:
            return []
        settled = [number for number in self.left if number not in attempt.wanted]
        final = [(number, self._failure(number)) for number in settled]
        for number in settled:
            del self.left[number]
        return final

    def attempt_ended(self, attempt: Attempt, now: float) -> float | None:
        """Record the end of a try; return the pause before the next; None: no more tries."""
        for at in attempt.unreported:
            what, where = self._wanted.describe_piece(attempt.numbers[at]), attempt.source.location
            error = errors.SourceUnreachable(what, where, "it reported no result")
            self._failed(attempt, attempt.numbers[at], error)
        if self._may_retry(attempt):
            again_s = backoff.pause_s(attempt.tries, RETRY_FIRST_S, RETRY_LONGEST_S) * (
                0.5 + 0.5 * self._failover.random()
            )
            if now + again_s < self._deadline_s:
                return again_s
        for number, failure in attempt.transient.items():
            self._failures.setdefault(number, []).append(failure)
        if attempt.source is not self._failover.copies:
            self._record_attempt(attempt, now)
        return None

    def end_attempt(self, attempt: Attempt) -> None:
        """Remove an attempt."""
        if attempt in self._in_flight:
            del self._in_flight[attempt]
            attempt.source.breaker.end_wait()

    def close(self) -> None:
        """End the request and its attempts."""
        for attempt in list(self._in_flight):
            self.end_attempt(attempt)
        for source in self._hedged:
            source.is_hedged = False
        if not (self.left or self._is_refused or self._is_copied):
            self._failover.refused.pop(self._wanted.key, None)

    def list_failures(self) -> list[tuple[int, errors.ChunkUnavailable]]:
        """Return why no source gave the missing pieces."""
        return [(number, self._failure(number)) for number in self.left]

    def _failure(self, number: int) -> errors.ChunkUnavailable:
        return most_useful(self._failures[number], self._wanted.describe_piece(number))

    def _start_attempt(
        self, source: failover.SourceState, wanted: Collection[int] | None, now: float
    ) -> Attempt:
        attempt = Attempt(source, wanted, now)
        self._in_flight[attempt] = None
        source.breaker.begin_wait(now)
        return attempt

    def _ask_copies(self, now: float) -> Attempt | None:
        wanted = list(self.left) if self._is_refused else self._refused()
        if not self._is_refused:
            if not wanted or not self._wanted.may_copy():
                return None
            self._failover.note_refused(self._wanted.key, now)
        self._is_copied = True
        for number in wanted:
            self._failures.pop(number, None)
        return self._start_attempt(self._failover.copies, wanted, now)

    def _refused(self) -> list[int]:
        return [
            n for n, failure in self.list_failures() if isinstance(failure, errors.ChunkRefused)
        ]

    def _failed(self, attempt: Attempt, number: int, failure: errors.ChunkUnavailable) -> None:
        if failover.is_transient(failure):
            attempt.transient[number] = failure
        else:
            attempt.failures.append(failure)
            self._failures.setdefault(number, []).append(failure)

    def _may_retry(self, attempt: Attempt) -> bool:
        tries = 1 if attempt.source is self._failover.copies else self._failover.attempts
        return attempt.tries < tries - 1 and any(n in self.left for n in attempt.transient)

    def _record_health(self, attempt: Attempt, answers: Answers, is_new: bool, now: float) -> None:
        if is_new and not self.left:
            self._record_winner(attempt, now)
        elif (attempt.unreported or self._may_retry(attempt)) and any(
            not isinstance(outcome, errors.SourceUnreachable) for _, outcome in answers
        ):
            self._failover.note_answer(attempt.source, now)  # else _record_attempt does

    def _record_attempt(self, attempt: Attempt, now: float) -> None:
        failures = [*attempt.transient.values(), *attempt.failures]
        if failures:
            self._failover.note_failure(attempt.source, self._wanted.image_id, failures[0], now)
            return
        attempt.source.refusals.clear_refusal(self._wanted.image_id)
        if self._winner is not attempt.source:
            self._failover.note_answer(attempt.source, now)

    def _record_winner(self, attempt: Attempt, now: float) -> None:
        """Record the source of the last piece; those that were silent meanwhile are down."""
        self._winner = winner = attempt.source
        self._failover.note_answer(winner, now)
        for other in self._in_flight:
            since_s = other.source.breaker.silent_since_s
            if other is not attempt and max(other.began_s, since_s) <= attempt.began_s:
                why = f"no answer for {now - since_s:.1f} s, while {winner.location} answered"
                self._failover.note_down(other.source, why, now)

    def _last(self) -> failover.SourceState:
        return next(reversed(self._in_flight)).source

    def _is_hedge_due(self, now: float) -> bool:
        source = self._last()
        if now < self._late_s():
            return False
        if source.breaker.is_down or self._failover.hedge.may_hedge():
            return True
        if source.is_hedged or now < source.breaker.silent_since_s + failover.SILENT_LONGEST_S:
            return False
        source.is_hedged = True
        self._hedged.append(source)
        return True

    def _late_s(self) -> float:
        return self._last().breaker.silent_since_s + self._failover.hedge.delay_s


def most_useful(
    failures: Sequence[errors.ChunkUnavailable], what: str = ""
) -> errors.ChunkUnavailable:
    """Return one error for all of ``failures``, of the most hopeful class."""
    if len(failures) == 1:
        return failures[0]
    present = (kind for kind in _MOST_USEFUL_FIRST if any(isinstance(f, kind) for f in failures))
    kind = next(present, errors.ChunkMissing)
    where = ", ".join(failure.where for failure in failures)
    why = "; ".join(f"{failure.where}: {failure.why}" for failure in failures)
    return kind(what or failures[0].what, where, why)
