# SPDX-License-Identifier: Apache-2.0
"""Ends each attempt at a place in time: what has no answer by then is SourceUnreachable.

One attempt is one question to the driver: a run of pieces, a size or a look.
How long it may take, ``core/sources/attempt_timeout.py`` decides from what the latest took: a slow
place has longer.  So whatever hangs below, retry and failover see a passing fault, and go on.
"""

from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Sequence
from typing import TypeVar

import trio

from acstor_agent.core.sources import attempt_timeout
from acstor_agent.sources import base
from acstor_common import errors

T = TypeVar("T")

CLOSE_S = 2.0


class AttemptSource(base.Wrapper):
    """Gives every question to the inner source a deadline.

    :param timeout: how long is too long there
    """

    def __init__(self, inner: base.Source, timeout: attempt_timeout.AttemptTimeout) -> None:
        super().__init__(inner)
        self._timeout = timeout

    async def size_bytes(self, blob: base.Blob) -> int:
        """Ask for the size, as long as an attempt may take."""
        what = f"the size of {blob.name}"
        return await self._attempt(what, lambda: self._inner.size_bytes(blob))

    async def look(self, blob: base.Blob) -> base.Seen:
        """Look, as long as an attempt may take."""
        what = f"a look at {blob.name}"
        return await self._attempt(what, lambda: self._inner.look(blob))

    async def read_pieces(
        self, blob: base.Blob, pieces: Sequence[base.Piece], told: base.Told
    ) -> None:
        """Read, as long as an attempt may take; what came in time is told."""
        left = set(range(len(pieces)))
        has_failed = False

        def note(answers: base.Answers) -> None:
            nonlocal has_failed
            for number, outcome in answers:
                left.discard(number)
                if isinstance(outcome, Exception):
                    has_failed = True
            told(answers)

        deadline_s = self._timeout.deadline_s(sum([piece.length for piece in pieces]))
        began_s = trio.current_time()
        with trio.move_on_after(deadline_s):
            await self._inner.read_pieces(blob, pieces, note)
            if not has_failed:
                self._timeout.answered(trio.current_time() - began_s)
            return
        start, stop = pieces[0].offset, pieces[-1].offset + pieces[-1].length
        late = self._missed(blob.part(start, stop - start), deadline_s)
        if left:
            told([(number, late) for number in sorted(left)])

    async def aclose(self) -> None:
        """Close the inner source, unless it takes long."""
        with trio.move_on_after(CLOSE_S):
            await self._inner.aclose()

    def health(self) -> base.Health:
        """Return what the inner source says, with the attempts that had no answer."""
        return self._inner.health()._replace(missed_attempts=self._timeout.misses)

    async def _attempt(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
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
