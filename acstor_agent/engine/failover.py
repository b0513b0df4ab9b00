# SPDX-License-Identifier: Apache-2.0
"""Failover among sources: their order, retries, hedges, and what is known of each.

A request asks the preferred source first.  After a transient fault it asks the same source again,
with a jittered pause ("equal jitter" of Brooker, "Exponential backoff and jitter", 2015).  Then it
asks the next source for the pieces that it lacks.  A source that is down is asked last for a while,
but never left out (``core/sources/circuit_breaker``).

When a source is silent for longer than usual, the request hedges: it asks the next source as well,
and the first answer counts.  If the silent source has answered no request meanwhile it is down, and
all requests that wait for it go on to the next one.  A hedge costs bytes, so hedges have a budget
(``hedge``), and one more at a time, unless the source is known to be down.

Pieces that every source refuses are read from local copies of the blob, where there are any, and
for REFUSED_S without asking the sources again.  Log lines and the wall clock are callbacks; other
times are seconds of one clock, given by the caller.
"""

import collections
import math
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Hashable
from collections.abc import Sequence
from typing import Any

from acstor_agent.core import health_issues
from acstor_agent.core.sources import circuit_breaker
from acstor_agent.core.sources import source_refusals
from acstor_agent.engine import backoff
from acstor_agent.engine import hedge
from acstor_common import errors
from acstor_common.model import ids

ATTEMPTS = 3
"""How often a request asks one source while its faults are transient."""
SILENT_SHORTEST_S, SILENT_FIRST_S, SILENT_LONGEST_S = 1.0, 2.0, 5.0
"""After how long a silent source is hedged: at least, while little is known, and at most."""
TICK_S = 0.25
"""How often a request without hedge budget looks whether there is some."""
REFUSED_S = 300.0
REFUSED_LIMIT = 4096

_MOST_USEFUL_FIRST = (
    errors.SourceUnreachable,
    errors.ChunkInvalid,
    errors.SourceRefused,
    errors.ChunkRefused,
)

Answers = Sequence[tuple[int, Any]]
"""What became of pieces, by number: bytes, or an :class:`errors.ChunkUnavailable`."""


class SourceState:
    """What is known of one source.

    :param where: the place, in words
    :param configured: which options name it, and as whom it is asked, for operators
    :ivar down: why it counts as down, and since when; None: it does not
    :ivar is_hedged: a request hedges it without a budget
    """

    __slots__ = ("_where", "breaker", "configured", "down", "is_hedged", "refusals")

    def __init__(self, where: Callable[[], str], configured: str = "") -> None:
        self._where = where
        self.configured = f" ({configured})" if configured else ""
        self.breaker = circuit_breaker.CircuitBreaker()
        self.refusals = source_refusals.Refusals()
        self.down: health_issues.HealthIssue | None = None
        self.is_hedged = False

    @property
    def where(self) -> str:
        """What the source reads now: some learn it when they sign in."""
        return self._where()


class Failover:
    """The sources of a host.

    :param sources: at least one, the preferred one first
    :param random: returns a number from 0 up to 1, for the jitter
    :param clock: tells the wall clock, for operators
    :param warn: logs that a source fails; ``inform``: that it works again
    :param attempts: how often a request asks one source while its faults are transient
    :ivar copies: what is asked for pieces that all sources refuse; it is not judged
    :ivar refused: until when requests of a key go to the copies at once
    """

    def __init__(
        self,
        sources: Sequence[SourceState],
        random: Callable[[], float],
        clock: Callable[[], float],
        warn: Callable[[str], None],
        inform: Callable[[str], None],
        attempts: int = ATTEMPTS,
    ) -> None:
        self.sources, self.random, self.attempts = sources, random, attempts
        self.copies = SourceState(lambda: "copies")
        self.hedge = hedge.HedgeBudget(SILENT_SHORTEST_S, SILENT_FIRST_S, SILENT_LONGEST_S)
        self.refused: collections.OrderedDict[Hashable, float] = collections.OrderedDict()
        self._clock, self._warn, self._inform = clock, warn, inform

    def ordered_sources(self, now: float) -> list[SourceState]:
        """Return the sources, those that are down last."""
        return sorted(self.sources, key=lambda source: not source.breaker.may_be_first(now))

    def fault_of(self, source: SourceState) -> health_issues.HealthIssue | None:
        """Return what is wrong with a source; may be called from any thread."""
        return source.down or source.refusals.last_refusal(self._clock())

    def note_refused(self, key: Hashable, now: float) -> None:
        """Note that all sources refuse a key."""
        self.refused[key] = now + REFUSED_S
        self.refused.move_to_end(key)
        if len(self.refused) > REFUSED_LIMIT:
            self.refused.popitem(last=False)

    def note_answer(self, source: SourceState, now: float) -> None:
        """Note that a source has answered."""
        self.hedge.record_latency(source.breaker.record_answer(now))
        if source.down is not None:
            source.down = None
            self._inform(f"Source {source.where} answers again")

    def note_down(self, source: SourceState, why: str, now: float) -> None:
        """Note that a source does not answer."""
        why += source.configured
        if source.breaker.record_failure(now):
            self._warn(f"Source {source.where} does not answer: {why}")
        since_s = source.down.since_s if source.down else self._clock()
        source.down = health_issues.HealthIssue(why, since_s)

    def note_failure(
        self,
        source: SourceState,
        image_id: ids.ImageId,
        failure: errors.ChunkUnavailable,
        now: float,
    ) -> None:
        """Note what a failure says of a source."""
        if is_transient(failure):
            self.note_down(source, failure.why, now)
            return
        if isinstance(failure, errors.SourceOverloaded):
            return
        self.note_answer(source, now)
        if isinstance(failure, errors.SourceRefused):
            why = failure.why + source.configured
            if source.refusals.record_refusal(image_id, why, self._clock()):
                self._warn(f"Source {source.where} refuses {failure.what}: {why}")


class Attempt:
    """One source that a request asks for pieces, and again for those with transient faults.

    :param wanted: the numbers of the pieces to ask for; None: all that are left
    :ivar numbers: of the pieces that the source is asked for now
    :ivar tries: how often it was asked before
    :ivar untold: indices in ``numbers`` of the pieces without an outcome
    :ivar transient: faults of this try that may pass, by number; ``failures``: all others
    """

    __slots__ = (
        *("began_s", "failures", "numbers", "source"),
        *("transient", "tries", "untold", "wanted"),
    )

    def __init__(self, source: SourceState, wanted: Collection[int] | None, began_s: float) -> None:
        self.source, self.wanted, self.began_s = source, wanted, began_s
        self.tries = -1
        self.numbers: Sequence[int] = ()
        self.untold: set[int] = set()
        self.transient: dict[int, errors.ChunkUnavailable] = {}
        self.failures: list[errors.ChunkUnavailable] = []


class SourceRequest:
    """Pieces to read, from one source after the other, or from several beside each other.

    The first source that gives a piece counts; the next one is asked for what is left.

    :param key: what is read: a refusal holds for all of it
    :param what: says what a piece is, in words
    :param may_copy: says whether the copies can give the key, once all sources have refused it
    :param ignores_refusals: ask the sources, whatever they have refused before
    :param deadline_s: when the caller gives up
    :ivar left: numbers of the pieces that no source has given
    """

    def __init__(
        self,
        failover: Failover,
        key: Hashable,
        image_id: ids.ImageId,
        count: int,
        what: Callable[[int], str],
        may_copy: Callable[[], bool],
        ignores_refusals: bool,
        now: float,
        deadline_s: float,
    ) -> None:
        self._failover, self._key, self._image_id = failover, key, image_id
        self._what, self._may_copy, self._deadline_s = what, may_copy, deadline_s
        self.left = dict.fromkeys(range(count))
        self._is_refused = not ignores_refusals and failover.refused.get(key, 0.0) > now
        self._is_copied = False
        self._sources = [] if self._is_refused else failover.ordered_sources(now)
        self._under_way: dict[Attempt, None] = {}
        self._hedged: list[SourceState] = []
        self._winner: SourceState | None = None
        self._failures: dict[int, list[errors.ChunkUnavailable]] = {}

    @property
    def may_hedge(self) -> bool:
        """Say whether there is another source beside the one that is asked first."""
        return len(self._sources) > 1

    def next_attempt(self, now: float) -> Attempt | None:
        """Return an attempt that begins now; None if none does."""
        if not self.left:
            return None
        if self._sources:
            is_due = not self._under_way or self._is_hedge_due(now)
            return self._add(self._sources.pop(0), None, now) if is_due else None
        return None if self._under_way or self._is_copied else self._ask_copies(now)

    def next_s(self, now: float) -> float:
        """Return when to call :meth:`next_attempt` again without an outcome; infinite: never."""
        if self._sources and self._under_way:
            return max(self._late_s(), now + TICK_S)
        return math.inf

    @property
    def is_over(self) -> bool:
        """Say that all pieces are here, or that no source is being asked for them."""
        return not self.left or not self._under_way

    def begin_attempt(self, attempt: Attempt) -> bool:
        """Begin the next try of an attempt; say whether anything is left to ask for."""
        wanted = attempt.transient or attempt.wanted
        numbers = sorted(self.left if wanted is None else [n for n in wanted if n in self.left])
        attempt.numbers, attempt.untold, attempt.transient = numbers, set(range(len(numbers))), {}
        attempt.tries += 1
        return bool(numbers)

    def record_outcomes(self, attempt: Attempt, answers: Answers, now: float) -> Answers:
        """Take outcomes of pieces, by index in the attempt; return those that are final, by number.

        These are the bytes that are new, and failures of the copies, which are asked once.
        """
        is_last, final = attempt.source is self._failover.copies, []
        for at, outcome in answers:
            number = attempt.numbers[at]
            attempt.untold.discard(at)
            if isinstance(outcome, errors.ChunkUnavailable) and not is_last:
                self._failed(attempt, number, outcome)
            elif number in self.left:
                del self.left[number]
                final.append((number, outcome))
        if not is_last:
            self._note_told(attempt, answers, bool(final), now)
        return final

    def final_failures(self, attempt: Attempt) -> list[tuple[int, errors.ChunkUnavailable]]:
        """Return the failures that are final when an attempt begins: of what copies do not give."""
        if attempt.source is not self._failover.copies or attempt.wanted is None:
            return []
        settled = [number for number in self.left if number not in attempt.wanted]
        final = [(number, self._failure(number)) for number in settled]
        for number in settled:
            del self.left[number]
        return final

    def attempt_ended(self, attempt: Attempt, now: float) -> float | None:
        """Note that a try is over; return the pause before the next one; None: it was the last."""
        for at in attempt.untold:
            what, where = self._what(attempt.numbers[at]), attempt.source.where
            error = errors.SourceUnreachable(what, where, "it did not report it")
            self._failed(attempt, attempt.numbers[at], error)
        if self._may_retry(attempt):
            again_s = backoff.pause_s(attempt.tries) * (0.5 + 0.5 * self._failover.random())
            if now + again_s < self._deadline_s:
                return again_s
        for number, failure in attempt.transient.items():
            self._failures.setdefault(number, []).append(failure)
        if attempt.source is not self._failover.copies:
            self._judge(attempt, now)
        return None

    def end_attempt(self, attempt: Attempt) -> None:
        """Note that an attempt is over, for whatever reason."""
        if attempt in self._under_way:
            del self._under_way[attempt]
            attempt.source.breaker.end_wait()

    def close(self) -> None:
        """End the request, with what is under way for it."""
        for attempt in list(self._under_way):
            self.end_attempt(attempt)
        for source in self._hedged:
            source.is_hedged = False
        if not (self.left or self._is_refused or self._is_copied):
            self._failover.refused.pop(self._key, None)

    def list_failures(self) -> list[tuple[int, errors.ChunkUnavailable]]:
        """Return why no source gave what is left."""
        return [(number, self._failure(number)) for number in self.left]

    def _failure(self, number: int) -> errors.ChunkUnavailable:
        return most_useful(self._failures[number], self._what(number))

    def _add(self, source: SourceState, wanted: Collection[int] | None, now: float) -> Attempt:
        attempt = Attempt(source, wanted, now)
        self._under_way[attempt] = None
        source.breaker.begin_wait(now)
        return attempt

    def _ask_copies(self, now: float) -> Attempt | None:
        """Ask the copies for what all sources refuse."""
        wanted = list(self.left) if self._is_refused else self._refused()
        if not self._is_refused:
            if not wanted or not self._may_copy():
                return None
            self._failover.note_refused(self._key, now)
        self._is_copied = True
        for number in wanted:
            self._failures.pop(number, None)
        return self._add(self._failover.copies, wanted, now)

    def _refused(self) -> list[int]:
        """Return the numbers of the pieces that sources refuse, and that none may yet give."""
        return [
            n for n, failure in self.list_failures() if isinstance(failure, errors.ChunkRefused)
        ]

    def _failed(self, attempt: Attempt, number: int, failure: errors.ChunkUnavailable) -> None:
        if is_transient(failure):
            attempt.transient[number] = failure
        else:
            attempt.failures.append(failure)
            self._failures.setdefault(number, []).append(failure)

    def _may_retry(self, attempt: Attempt) -> bool:
        tries = 1 if attempt.source is self._failover.copies else self._failover.attempts
        return attempt.tries < tries - 1 and any(n in self.left for n in attempt.transient)

    # Health of sources

    def _note_told(self, attempt: Attempt, answers: Answers, is_new: bool, now: float) -> None:
        if is_new and not self.left:
            self._win(attempt, now)
        elif (attempt.untold or self._may_retry(attempt)) and any(
            not isinstance(outcome, errors.SourceUnreachable) for _, outcome in answers
        ):
            self._failover.note_answer(attempt.source, now)  # the last one is noted with the rest

    def _judge(self, attempt: Attempt, now: float) -> None:
        """Judge a source by its failures; that it does not answer counts most."""
        failures = [*attempt.transient.values(), *attempt.failures]
        if failures:
            self._failover.note_failure(attempt.source, self._image_id, failures[0], now)
            return
        attempt.source.refusals.clear_refusal(self._image_id)
        if self._winner is not attempt.source:
            self._failover.note_answer(attempt.source, now)

    def _win(self, attempt: Attempt, now: float) -> None:
        """Note which source gave the last piece; those that were silent meanwhile are down."""
        self._winner = winner = attempt.source
        self._failover.note_answer(winner, now)
        for other in self._under_way:
            since_s = other.source.breaker.silent_since_s
            if other is not attempt and max(other.began_s, since_s) <= attempt.began_s:
                why = f"no answer for {now - since_s:.1f} s, while {winner.where} answered"
                self._failover.note_down(other.source, why, now)

    # Hedges

    def _last(self) -> SourceState:
        return next(reversed(self._under_way)).source

    def _is_hedge_due(self, now: float) -> bool:
        """Say whether the source that was asked last is so late that the next one is asked, too."""
        source = self._last()
        if now < self._late_s():
            return False
        if source.breaker.is_down or self._failover.hedge.may_hedge():
            return True
        if source.is_hedged or now < source.breaker.silent_since_s + SILENT_LONGEST_S:
            return False
        source.is_hedged = True
        self._hedged.append(source)
        return True

    def _late_s(self) -> float:
        return self._last().breaker.silent_since_s + self._failover.hedge.delay_s


def is_transient(failure: errors.ChunkUnavailable) -> bool:
    """Say whether a source did not answer; where a crowd waits it was not even asked."""
    is_crowd = isinstance(failure, errors.SourceOverloaded)
    return isinstance(failure, errors.SourceUnreachable) and not is_crowd


def most_useful(
    failures: Sequence[errors.ChunkUnavailable], what: str = ""
) -> errors.ChunkUnavailable:
    """Return one error for all of ``failures``, of the class that leaves most hope.

    Unreachable wins over invalid, that over refused, and that over missing: as long as one place
    did not answer, nobody may conclude that the bytes do not exist.

    :param what: what it is about, where they are about more
    """
    if len(failures) == 1:
        return failures[0]
    present = (kind for kind in _MOST_USEFUL_FIRST if any(isinstance(f, kind) for f in failures))
    kind = next(present, errors.ChunkMissing)
    where = ", ".join(failure.where for failure in failures)
    why = "; ".join(f"{failure.where}: {failure.why}" for failure in failures)
    return kind(what or failures[0].what, where, why)
