# SPDX-License-Identifier: Apache-2.0
"""Takes what all places refuse to give in parts from copies of the whole; around failover.

The one rule: places come first, and a fault that may pass makes no copy.  What they refuse for want
of ranges (``CopiesSource.can_give``) is taken from copies, for a while without asking them again.
"""

import collections
from collections.abc import Sequence

import trio

from acstor_agent.sources import base
from acstor_agent.sources import failover
from acstor_agent.sources import whole_copies
from acstor_common import chunk_map
from acstor_common import errors

REFUSED_S = 300.0
"""For how long places are not asked for parts of what they refuse; who attaches asks anew."""
REFUSED_LIMIT = 4096


class WholeSource(base.Wrapper):
    """See above.

    :param places: which give parts
    :param copies: what gives the rest
    """

    def __init__(self, places: failover.FailoverSource, copies: whole_copies.CopiesSource) -> None:
        super().__init__(places)
        self._places, self._copies = places, copies
        self._refused: collections.OrderedDict[base.Blob, float] = collections.OrderedDict()

    def places(self) -> list[failover.PlaceState]:
        """Return how each source does; may be called from any thread."""
        return self._places.places()

    async def size_bytes(self, blob: base.Blob) -> int:
        """Ask the places, and Glance's record if they refuse."""
        try:
            size_bytes = await self._places.size_bytes(blob)
        except errors.ChunkRefused:
            if not self._copies.can_give(blob):
                raise
            size_bytes = await self._copies.size_bytes(blob)
            self._note_refused(blob)
            return size_bytes
        self._refused.pop(blob, None)
        return size_bytes

    async def read_pieces(
        self, blob: base.Blob, pieces: Sequence[base.Piece], told: base.Told
    ) -> None:
        """Ask the places, and take from a copy what they refuse."""
        if self._refused.get(blob, 0.0) > trio.current_time():
            await self._copies.read_pieces(blob, pieces, told)
            return
        refused: list[tuple[int, base.Outcome]] = []

        def sift(answers: base.Answers) -> None:
            passed = [one for one in answers if not isinstance(one[1], errors.ChunkRefused)]
            if len(passed) < len(answers):
                refused.extend(one for one in answers if isinstance(one[1], errors.ChunkRefused))
            if passed:
                told(passed)

        await self._places.read_pieces(blob, pieces, sift)
        if not refused:
            return
        if not self._copies.can_give(blob):
            told(refused)
            return
        self._note_refused(blob)
        numbers = [number for number, _ in refused]

        def renumbered(answers: base.Answers) -> None:
            told([(numbers[at], outcome) for at, outcome in answers])

        await self._copies.read_pieces(blob, [pieces[n] for n in numbers], renumbered)

    def os_hash(self, blob: base.Blob) -> chunk_map.OsHash:
        """Return what the place knows that the bytes come from."""
        return (self._copies if blob in self._refused else self._places).os_hash(blob)

    async def aclose(self) -> None:
        """Let copies go, close the places."""
        await self._copies.aclose()
        await self._places.aclose()

    def _note_refused(self, blob: base.Blob) -> None:
        self._refused[blob] = trio.current_time() + REFUSED_S
        self._refused.move_to_end(blob)
        while len(self._refused) > REFUSED_LIMIT:
            self._refused.popitem(last=False)
