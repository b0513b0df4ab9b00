# SPDX-License-Identifier: Apache-2.0
"""A base for test sources that only define a range read."""

import trio

from acstor_agent.sources import base
from acstor_agent.sources import driver
from acstor_common import errors


class ReadingSource(base.Source):
    """Reads pieces by its ``read``, each contiguous run at once, and checks them.

    Tests override ``read`` to fail, send wrong bytes or wait.
    """

    async def read_pieces(self, request: base.PieceRequest) -> None:
        """Read each run of pieces."""
        await _Reading(self).read_pieces(request)


async def read_side_by_side(source: base.Source, blob: base.Blob, length: int, piece: int) -> bytes:
    """Read a whole blob in concurrent pieces."""
    got: dict[int, bytes] = {}

    async def read(offset: int) -> None:
        got[offset] = await source.read(blob, offset, min(piece, length - offset))

    async with trio.open_nursery() as nursery:
        for offset in range(0, length, piece):
            nursery.start_soon(read, offset)
    return b"".join(got[offset] for offset in sorted(got))


class _Reading(driver.Driver):
    """The driver of a source that has only ``read``."""

    def __init__(self, source: base.Source) -> None:
        self._source = source

    @classmethod
    def from_conf(cls, group: object) -> "_Reading":
        """Not supported: no options."""
        raise errors.Unusable("a test's source", "it has no options", "Make it")

    @property
    def location(self) -> str:
        """The source's location."""
        return self._source.location

    async def size_bytes(self, blob: base.Blob) -> int:
        """Return the blob's size from the source."""
        return await self._source.size_bytes(blob)

    async def fill_run(self, run: driver.BlobRun) -> None:
        """Read the run's range."""
        run.fill_first(await self._source.read(run.blob, run.offset, run.length))

    async def aclose(self) -> None:
        """Close the source."""
        await self._source.aclose()
