# SPDX-License-Identifier: Apache-2.0
"""Retries a driver: each attempt has a deadline, and a passing fault is tried again.

A passing fault is SourceUnreachable, and so is an attempt that was not answered in time.  How long
one may take, ``core/sources/attempt_timeout.py`` decides from what the latest took: a slow place
has longer.  So whatever hangs below, failover sees a passing fault, and goes on.

The pauses between attempts double and are jittered between half and all of their length ("equal
jitter" of Brooker, "Exponential backoff and jitter", 2015), so that many hosts do not come back at
the same moment.  A pause that would outlive the caller's deadline is not made: the caller gets the
fault while it still has time to ask somebody else.
"""

import random
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Sequence
from typing import TypeVar

import trio

from acstor_agent.core.sources import attempt_timeout
from acstor_agent.sources import base
from acstor_common import errors

T = TypeVar("T")

ATTEMPTS = 3
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
CLOSE_S = 2.0


class _Attempt:
    """One attempt to read pieces: passes on what was told, but for faults that may pass.

    :param numbers: of the pieces, as the caller counts them; a range: these are all of them
    :ivar failed: pieces whose fault may pass, by the caller's numbers
    :ivar has_error: something was told to be an error
    """

    __slots__ = ("_is_first", "_left", "_numbers", "_told", "failed", "has_error")

    def __init__(self, numbers: Sequence[int], told: base.Told) -> None:
        self._numbers, self._told = numbers, told
        self._is_first = isinstance(numbers, range)
        self._left = set(range(len(numbers)))
        self.failed: list[tuple[int, base.Outcome]] = []
        self.has_error = False

    def took(self, answers: base.Answers) -> None:
        """Take what the driver tells."""
        self._left.difference_update([at for at, _ in answers])
        if self._is_first and not any([isinstance(what, Exception) for _, what in answers]):
            self._told(answers)
            return
        passed: list[tuple[int, base.Outcome]] = []
        for at, outcome in answers:
            is_passing = isinstance(outcome, errors.SourceUnreachable)
            self.has_error |= isinstance(outcome, Exception)
            (self.failed if is_passing else passed).append((self._numbers[at], outcome))
        if passed:
            self._told(passed)

    def missed(self, error: errors.SourceUnreachable) -> None:
        """Note that no more is told in time."""
        self.took([(at, error) for at in sorted(self._left)])


class RetrySource(base.Wrapper):
    """Asks a driver at most ``attempts`` times.

    :param rng: where the jitter comes from
    :param timeout: how long an attempt may take
    """

    def __init__(
        self,
        inner: base.Source,
        rng: random.Random,
        timeout: attempt_timeout.AttemptTimeout | None = None,
        attempts: int = ATTEMPTS,
        first_pause_s: float = FIRST_PAUSE_S,
        longest_pause_s: float = LONGEST_PAUSE_S,
    ) -> None:
        super().__init__(inner)
        self._timeout = timeout or attempt_timeout.AttemptTimeout()
        self._rng, self._attempts = rng, attempts
        self._first_pause_s, self._longest_pause_s = first_pause_s, longest_pause_s

    async def size_bytes(self, blob: base.Blob) -> int:
        """Ask for the size until there is an answer."""
        return await self._ask(f"the size of {blob.name}", lambda: self._inner.size_bytes(blob))

    async def look(self, blob: base.Blob) -> base.Seen:
        """Look until there is an answer."""
        return await self._ask(f"a look at {blob.name}", lambda: self._inner.look(blob))

    async def read_pieces(
        self,
        blob: base.Blob,
        pieces: Sequence[base.Piece],
        told: base.Told,
        requester: base.Requester = base.AGENT,
    ) -> None:
        """Read until there is an answer for each piece; only what failed is asked for again."""
        numbers: Sequence[int] = range(len(pieces))
        for count in range(1, self._attempts + 1):
            attempt = _Attempt(numbers, told)
            await self._attempt(blob, [pieces[number] for number in numbers], attempt)
            if not attempt.failed:
                return
            pause_s = self._pause_s(count)
            if count == self._attempts or not _has_time_for(pause_s):
                told(attempt.failed)
                return
            numbers = sorted(number for number, _ in attempt.failed)
            await trio.sleep(pause_s)

    async def aclose(self) -> None:
        """Close the driver, unless that takes long."""
        with trio.move_on_after(CLOSE_S):
            await self._inner.aclose()

    def health(self) -> base.Health:
        """Return what the driver says, with the attempts that had no answer."""
        return self._inner.health()._replace(missed_attempts=self._timeout.misses)

    async def _attempt(
        self, blob: base.Blob, pieces: Sequence[base.Piece], attempt: _Attempt
    ) -> None:
        """Read once; what came in time is told."""
        deadline_s = self._timeout.deadline_s(sum([piece.length for piece in pieces]))
        began_s = trio.current_time()
        with trio.move_on_after(deadline_s):
            await self._inner.read_pieces(blob, pieces, attempt.took)
            if not attempt.has_error:
                self._timeout.answered(trio.current_time() - began_s)
            return
        start, stop = pieces[0].offset, pieces[-1].offset + pieces[-1].length
        attempt.missed(self._missed(blob.part(start, stop - start), deadline_s))

    async def _ask(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        for count in range(1, self._attempts):
            try:
                return await self._ask_once(what, ask)
            except errors.SourceUnreachable:
                pause_s = self._pause_s(count)
                if not _has_time_for(pause_s):
                    raise
            await trio.sleep(pause_s)
        return await self._ask_once(what, ask)

    async def _ask_once(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        deadline_s = self._timeout.deadline_s()
        began_s = trio.current_time()
        with trio.move_on_after(deadline_s):
            answer = await ask()
            self._timeout.answered(trio.current_time() - began_s)
            return answer
        raise self._missed(what, deadline_s)

    def _missed(self, what: str, deadline_s: float) -> errors.SourceUnreachable:
        self._timeout.missed(deadline_s)
        return errors.SourceUnreachable(what, self.where, f"no answer within {deadline_s:.0f} s")

    def _pause_s(self, count: int) -> float:
        """Return the pause after the ``count``-th failure: half to all of the doubled one."""
        full: float = min(self._first_pause_s * 2 ** (count - 1), self._longest_pause_s)
        return full * self._rng.uniform(0.5, 1)


def _has_time_for(pause_s: float) -> bool:
    """Say whether the caller still waits after a pause."""
    is_in_time: bool = trio.current_time() + pause_s < trio.current_effective_deadline()
    return is_in_time
