# SPDX-License-Identifier: Apache-2.0
"""Takes what all places refuse to give in parts from copies of the whole; around failover.

Places come first, and a fault that may pass makes no copy.  What they refuse for want of ranges
(``CopiesSource.can_give``) is taken from copies, for a while without asking them again.
"""

import collections
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Sequence
from typing import TypeVar

import trio

from acstor_agent.engine import placement
from acstor_agent.sources import base
from acstor_agent.sources import failover
from acstor_agent.sources import whole_copies
from acstor_common import chunk_map
from acstor_common import errors
from acstor_common import ids

T = TypeVar("T")

REFUSED_S = 300.0
"""For how long places are not asked for parts of what they refuse; who attaches asks anew."""
REFUSED_LIMIT = 4096


class WholeSource(base.Wrapper):
    """See above.

    :param places: which give parts
    :param copies: what gives the rest; None: nothing does
    :param read: around ``copies``, makes of them what guests read
    """

    def __init__(
        self,
        places: failover.FailoverSource,
        copies: whole_copies.CopiesSource | None = None,
        read: base.Source | None = None,
    ) -> None:
        super().__init__(places)
        self._places, self._copies, self._read = places, copies, read or copies
        self._refused: collections.OrderedDict[base.Blob, float] = collections.OrderedDict()

    def places(self) -> list[failover.PlaceState]:
        """Return how each source does; may be called from any thread."""
        return self._places.places()

    def given_as(self, image_id: ids.ImageId, offset: int) -> placement.Given:
        """Say how what hosts mean by an offset of an image is given."""
        if not self._refused or self._copies is None:
            return placement.Given.IN_PARTS
        blob, _ = base.blob_at(image_id, offset)
        if blob not in self._refused:
            return placement.Given.IN_PARTS
        return placement.Given.WHOLE_HERE if self._copies.has(blob) else placement.Given.WHOLE

    async def size_bytes(self, blob: base.Blob) -> int:
        """Ask the places, and Glance's record if they refuse."""
        return await self._ask(blob, lambda source: source.size_bytes(blob))

    async def look(self, blob: base.Blob) -> base.Seen:
        """Ask the places, and Glance's record if they refuse."""
        return await self._ask(blob, lambda source: source.look(blob))

    async def _ask(self, blob: base.Blob, ask: Callable[[base.Source], Awaitable[T]]) -> T:
        try:
            answer = await ask(self._places)
        except errors.ChunkRefused:
            if self._read is None or not self._can_copy(blob):
                raise
            answer = await ask(self._read)
            self._note_refused(blob)
        else:
            self._refused.pop(_as_asked(blob), None)
        return answer

    async def read_pieces(
        self,
        blob: base.Blob,
        pieces: Sequence[base.Piece],
        told: base.Told,
        requester: base.Requester = base.AGENT,
    ) -> None:
        """Ask the places, and take from a copy what they refuse."""
        if self._refused and self._refused.get(_as_asked(blob), 0.0) > trio.current_time():
            await self._read_copy(blob, pieces, told, requester)
            return
        refused: list[tuple[int, base.Outcome]] = []

        def sift(answers: base.Answers) -> None:
            passed = [one for one in answers if not isinstance(one[1], errors.ChunkRefused)]
            if len(passed) < len(answers):
                refused.extend(one for one in answers if isinstance(one[1], errors.ChunkRefused))
            if passed:
                told(passed)

        await self._places.read_pieces(blob, pieces, sift, requester)
        if not refused:
            if self._refused:
                self._refused.pop(_as_asked(blob), None)
        elif self._can_copy(blob):
            self._note_refused(blob)
            numbers = [number for number, _ in refused]

            def renumbered(answers: base.Answers) -> None:
                told([(numbers[at], outcome) for at, outcome in answers])

            await self._read_copy(
                blob, [pieces[number] for number in numbers], renumbered, requester
            )
        else:
            told(refused)

    def os_hash(self, blob: base.Blob) -> chunk_map.OsHash:
        """Return what the place knows that the bytes come from."""
        if self._copies is not None and _as_asked(blob) in self._refused:
            return self._copies.os_hash(blob)
        return super().os_hash(blob)

    async def aclose(self) -> None:
        """Let copies go, close the places."""
        if self._copies is not None:
            await self._copies.aclose()
        await self._places.aclose()

    async def _read_copy(
        self,
        blob: base.Blob,
        pieces: Sequence[base.Piece],
        told: base.Told,
        requester: base.Requester,
    ) -> None:
        assert self._copies is not None and self._read is not None
        image = base.Blob(blob.image_id, base.BlobKind.IMAGE)
        if blob.kind is base.BlobKind.BOOT_IMAGE and image in self._refused:
            self._copies.bring(blob.image_id)  # guests boot, and want the rest soon
        await self._read.read_pieces(blob, pieces, told, requester)

    def _can_copy(self, blob: base.Blob) -> bool:
        return self._copies is not None and self._copies.can_give(blob)

    def _note_refused(self, blob: base.Blob) -> None:
        key = _as_asked(blob)
        self._refused[key] = trio.current_time() + REFUSED_S
        self._refused.move_to_end(key)
        while len(self._refused) > REFUSED_LIMIT:
            self._refused.popitem(last=False)


def _as_asked(blob: base.Blob) -> base.Blob:
    """Return what is asked for where a blob is meant: of an image what guests read."""
    is_stored = blob.kind is base.BlobKind.QCOW2
    return base.Blob(blob.image_id, base.BlobKind.IMAGE) if is_stored else blob
