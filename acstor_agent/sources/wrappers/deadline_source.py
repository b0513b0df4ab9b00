# SPDX-License-Identifier: Apache-2.0
"""A source with timeouts, decoding excluded (core/sources/attempt_timeout.py)."""

from collections.abc import Awaitable
from collections.abc import Callable
from typing import TypeVar

import trio

from acstor_agent.core.sources import attempt_timeout
from acstor_agent.sources import base
from acstor_common import errors

T = TypeVar("T")

CLOSE_S = 2.0


class DeadlineSource(base.Wrapper):
    """Reports a place as unreachable after a timeout, ``timeout_s`` (None: BASE_S) at least."""

    def __init__(self, inner: base.Source, timeout_s: float | None = None) -> None:
        super().__init__(inner)
        timeout_s = attempt_timeout.BASE_S if timeout_s is None else timeout_s
        self._timeout = attempt_timeout.AttemptTimeout(timeout_s)

    async def size_bytes(self, blob: base.Blob) -> int:
        """Return the size, or fail after a timeout."""
        return await self._ask(
            f"the size of {blob.file_name}", lambda: self._inner.size_bytes(blob)
        )

    async def find_blob(self, blob: base.Blob) -> base.BlobState:
        """Return the state, or fail after a timeout."""
        return await self._ask(
            f"the state of {blob.file_name}", lambda: self._inner.find_blob(blob)
        )

    async def read_pieces(self, request: base.PieceRequest) -> None:
        """Read pieces; those not read in time are unreachable."""
        pieces = request.pieces
        left, has_error = set(range(len(pieces))), False

        def took(answers: base.Outcomes) -> None:
            nonlocal has_error
            left.difference_update([at for at, _ in answers])
            has_error |= any([isinstance(outcome, Exception) for _, outcome in answers])
            request.report(answers)

        deadline_s = self._timeout.deadline_s(sum([piece.length for piece in pieces]))
        began_s = trio.current_time()
        with trio.move_on_after(deadline_s):
            await self._inner.read_pieces(request._replace(report=took))
            if not has_error:
                self._timeout.record_answer(trio.current_time() - began_s)
            return
        start, stop = pieces[0].offset, pieces[-1].offset + pieces[-1].length
        error = self._missed(request.blob.describe_range(start, stop - start), deadline_s)
        if left:
            request.report([(at, error) for at in sorted(left)])

    async def aclose(self) -> None:
        """Close the driver, for CLOSE_S at most."""
        with trio.move_on_after(CLOSE_S):
            await self._inner.aclose()

    def source_health(self) -> base.Health:
        """Return the driver's health with the number of timeouts."""
        return self._inner.source_health()._replace(missed_attempts=self._timeout.misses)

    async def _ask(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        deadline_s = self._timeout.deadline_s()
        began_s = trio.current_time()
        with trio.move_on_after(deadline_s):
            answer = await ask()
            self._timeout.record_answer(trio.current_time() - began_s)
            return answer
        raise self._missed(what, deadline_s)

    def _missed(self, what: str, deadline_s: float) -> errors.SourceUnreachable:
        self._timeout.record_timeout(deadline_s)
        return errors.SourceUnreachable(what, self.location, f"no answer within {deadline_s:.0f} s")
