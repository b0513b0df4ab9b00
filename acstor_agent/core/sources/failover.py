# SPDX-License-Identifier: Apache-2.0
"""Failover among sources: their order and health; local copies serve pieces that all refuse."""

from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Sequence
from typing import NamedTuple
from typing import Protocol

from acstor_agent.core import health_issues
from acstor_agent.core.sources import circuit_breaker
from acstor_agent.core.sources import hedge
from acstor_agent.core.sources import source_refusals
from acstor_common import errors
from acstor_common.model import clocks
from acstor_common.model import ids
from acstor_common.util import lru_table

ATTEMPTS = 3  # tries per source while its faults are transient
SILENT_SHORTEST_S, SILENT_FIRST_S, SILENT_LONGEST_S = 1.0, 2.0, 5.0
"""Silence before a hedge: minimum, while few latencies are known, maximum."""
REFUSED_S = 300.0  # for which pieces that all sources refused come from the copies only
REFUSED_LIMIT = 4096


class Located(Protocol):
    """Something to read from, with a name for operators."""

    @property
    def location(self) -> str:
        """Its location; some sources know it only after authentication."""


class OperatorLog(Protocol):
    """Reports to operators, as a logger does."""

    def warning(self, text: str, /) -> None:
        """Report a fault."""

    def info(self, text: str, /) -> None:
        """Report the end of a fault."""


class _Copies(NamedTuple):
    location: str = "copies"


class SourceState:
    """Health of one source; ``configured``: its options and user, for operators."""

    __slots__ = ("_source", "breaker", "configured", "down", "is_hedged", "refusals")

    def __init__(self, source: Located, configured: str = "") -> None:
        self._source = source
        self.configured = f" ({configured})" if configured else ""
        self.breaker = circuit_breaker.CircuitBreaker()
        self.refusals = source_refusals.Refusals()
        self.down: health_issues.HealthIssue | None = None
        self.is_hedged = False  # a request hedges it without budget

    @property
    def location(self) -> str:
        """The location of the source."""
        return self._source.location


class Failover:
    """The sources of a host, the preferred one first."""

    def __init__(
        self,
        sources: Sequence[SourceState],
        random: Callable[[], float],  # returns a number in [0, 1), for the jitter
        clock: clocks.Clock,  # of the Unix times that operators read; times of events are monotonic
        log: OperatorLog,
        attempts: int = ATTEMPTS,
        refused_limit: int = REFUSED_LIMIT,
    ) -> None:
        self.sources, self.random, self.attempts = sources, random, attempts
        self.copies = SourceState(_Copies())  # its health is not judged
        self.hedge = hedge.HedgeBudget(SILENT_SHORTEST_S, SILENT_FIRST_S, SILENT_LONGEST_S)
        self.refused: lru_table.LruTable[Hashable, float] = lru_table.LruTable(refused_limit)
        self._clock, self._log = clock, log

    def ordered_sources(self, now: float) -> list[SourceState]:
        """Return the sources, those that are down last."""
        return sorted(self.sources, key=lambda source: not source.breaker.attempt_request(now))

    def sources_of(self, key: Hashable, now: float) -> list[SourceState]:
        """Return the sources to ask for a key, in order; none if all refused it recently."""
        return [] if self.refused.get(key, 0.0) > now else self.ordered_sources(now)

    def fault_of(self, source: SourceState) -> health_issues.HealthIssue | None:
        """Return the fault of a source, if any; any thread may call it."""
        return source.down or source.refusals.last_refusal(self._clock.time())

    def note_refused(self, key: Hashable, now: float) -> None:
        """Record that all sources refuse a key."""
        self.refused[key] = now + REFUSED_S

    def note_answer(self, source: SourceState, now: float) -> None:
        """Record that a source answered."""
        self.hedge.record_latency(source.breaker.record_answer(now))
        if source.down is not None:
            source.down = None
            self._log.info(f"Source {source.location} answers again")

    def note_down(self, source: SourceState, why: str, now: float) -> None:
        """Record that a source does not answer."""
        why += source.configured
        if source.breaker.record_failure(now):
            self._log.warning(f"Source {source.location} does not answer: {why}")
        since_s = source.down.since_s if source.down else self._clock.time()
        source.down = health_issues.HealthIssue(why, since_s)

    def note_failure(
        self,
        source: SourceState,
        image_id: ids.ImageId,
        failure: errors.ChunkUnavailable,
        now: float,
    ) -> None:
        """Record a failure of a source."""
        if is_transient(failure):
            self.note_down(source, failure.why, now)
            return
        if isinstance(failure, errors.SourceOverloaded):
            return
        self.note_answer(source, now)
        if isinstance(failure, errors.SourceRefused):
            why = failure.why + source.configured
            if source.refusals.record_refusal(image_id, why, self._clock.time()):
                self._log.warning(f"Source {source.location} refuses {failure.what}: {why}")


def is_transient(failure: errors.ChunkUnavailable) -> bool:
    """Return whether a source did not answer; an overloaded one was not even asked."""
    is_overloaded = isinstance(failure, errors.SourceOverloaded)
    return isinstance(failure, errors.SourceUnreachable) and not is_overloaded
