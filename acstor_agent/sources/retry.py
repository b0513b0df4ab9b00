# SPDX-License-Identifier: Apache-2.0
"""Asks again after a passing fault: SourceUnreachable, and nothing else, is retried.

The pauses double and are jittered between half and all of their length ("equal
jitter" of Brooker, "Exponential backoff and jitter", 2015), so that many hosts do
not come back at the same moment.  A pause that would outlive the caller's deadline is not made:
the caller gets the fault while it still has time to ask somebody else.
"""

import random
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Sequence
from typing import TypeVar

import trio

from acstor_agent.sources import base
from acstor_common import errors

T = TypeVar("T")

ATTEMPTS = 3
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0


class _Sieve:
    """Passes on what was told, under other numbers, but for faults that may pass."""

    __slots__ = ("_failed", "_numbers", "_told")

    def __init__(
        self, numbers: Sequence[int], told: base.Told, failed: list[tuple[int, base.Outcome]]
    ) -> None:
        self._numbers, self._told, self._failed = numbers, told, failed

    def sift(self, answers: base.Answers) -> None:
        """Take what the inner source tells."""
        passed: list[tuple[int, base.Outcome]] = []
        for number, outcome in answers:
            is_passing = isinstance(outcome, errors.SourceUnreachable)
            (self._failed if is_passing else passed).append((self._numbers[number], outcome))
        if passed:
            self._told(passed)


class RetrySource(base.Wrapper):
    """Asks the inner source at most ``attempts`` times.

    :param rng: where the jitter comes from
    """

    def __init__(
        self,
        inner: base.Source,
        rng: random.Random,
        attempts: int = ATTEMPTS,
        first_pause_s: float = FIRST_PAUSE_S,
        longest_pause_s: float = LONGEST_PAUSE_S,
    ) -> None:
        super().__init__(inner)
        self._rng, self._attempts = rng, attempts
        self._first_pause_s, self._longest_pause_s = first_pause_s, longest_pause_s

    async def size_bytes(self, blob: base.Blob) -> int:
        """Ask for the size until there is an answer."""
        return await self._retry(lambda: self._inner.size_bytes(blob))

    async def look(self, blob: base.Blob) -> base.Seen:
        """Look until there is an answer."""
        return await self._retry(lambda: self._inner.look(blob))

    async def read_pieces(
        self, blob: base.Blob, pieces: Sequence[base.Piece], told: base.Told
    ) -> None:
        """Read until there is an answer for each piece; only what failed is asked for again."""
        numbers: Sequence[int] = range(len(pieces))
        for attempt in range(1, self._attempts + 1):
            failed: list[tuple[int, base.Outcome]] = []
            sieve = _Sieve(numbers, told, failed)
            await self._inner.read_pieces(blob, [pieces[number] for number in numbers], sieve.sift)
            if not failed:
                return
            pause_s = self._pause_s(attempt)
            if attempt == self._attempts or not _has_time_for(pause_s):
                told(failed)
                return
            numbers = sorted(number for number, _ in failed)
            await trio.sleep(pause_s)

    async def _retry(self, ask: Callable[[], Awaitable[T]]) -> T:
        for attempt in range(1, self._attempts):
            try:
                return await ask()
            except errors.SourceUnreachable:
                pause_s = self._pause_s(attempt)
                if not _has_time_for(pause_s):
                    raise
            await trio.sleep(pause_s)
        return await ask()

    def _pause_s(self, attempt: int) -> float:
        """Return the pause after the ``attempt``-th failure: half to all of the doubled one."""
        full: float = min(self._first_pause_s * 2 ** (attempt - 1), self._longest_pause_s)
        return full * self._rng.uniform(0.5, 1)


def _has_time_for(pause_s: float) -> bool:
    """Say whether the caller still waits after a pause."""
    is_in_time: bool = trio.current_time() + pause_s < trio.current_effective_deadline()
    return is_in_time
