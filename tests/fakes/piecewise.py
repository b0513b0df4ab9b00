# SPDX-License-Identifier: Apache-2.0
"""A source that reports one piece after the other, with faults and delays."""

from collections.abc import Mapping

import trio

from acstor_agent.sources import base
from acstor_common import errors


class PiecewiseSource(base.Source):
    """Blobs in memory.

    :param fail: errors, by a piece's offset
    :param delay_s: delay of a piece and all later ones, by its offset
    """

    def __init__(
        self,
        data: bytes,
        where: str = "memory",
        *,
        fail: Mapping[int, type[errors.ChunkUnavailable]] | None = None,
        delay_s: Mapping[int, float] | None = None,
    ) -> None:
        self._data, self._where = data, where
        self.fail, self.delay_s = dict(fail or {}), dict(delay_s or {})
        self.asked: list[list[int]] = []
        self.cancelled = 0

    @property
    def location(self) -> str:
        """The name of the source."""
        return self._where

    async def size_bytes(self, blob: base.Blob) -> int:
        """Return the length of any blob."""
        return len(self._data)

    async def read_pieces(self, request: base.PieceRequest) -> None:
        """Report one piece after the other."""
        self.asked.append([piece.offset for piece in request.pieces])
        try:
            for number, piece in enumerate(request.pieces):
                await trio.sleep(self.delay_s.get(piece.offset, 0))
                outcome: base.Outcome = self._data[piece.offset : piece.offset + piece.length]
                if piece.offset in self.fail:
                    what = request.blob.describe_range(piece.offset, piece.length)
                    outcome = self.fail[piece.offset](what, self.location, "by order")
                request.report([(number, outcome)])
        except trio.Cancelled:
            self.cancelled += 1
            raise

    async def aclose(self) -> None:
        """Do nothing."""
