# SPDX-License-Identifier: Apache-2.0
"""For sources of tests that say what one read of a range gives, and nothing more."""

import trio

from acstor_agent.sources import base
from acstor_agent.sources import driver
from acstor_common import errors


class ReadingSource(base.Source):
    """Reads pieces by its ``read``, those that follow each other at once, and checks them.

    Whoever wants ``read`` itself to fail, lie or wait overrides it.
    """

    async def read_pieces(self, request: base.PieceRequest) -> None:
        """Read each run of pieces."""
        await _Reading(self).read_pieces(request)


async def read_side_by_side(source: base.Source, blob: base.Blob, length: int, piece: int) -> bytes:
    """Read all of a blob in pieces that are asked for at once."""
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
        """No option makes one."""
        raise errors.Unusable("a test's source", "it has no options", "Make it")

    @property
    def location(self) -> str:
        """The source's place."""
        return self._source.location

    async def size_bytes(self, blob: base.Blob) -> int:
        """Ask the source."""
        return await self._source.size_bytes(blob)

    async def fill_run(self, run: driver.BlobRun) -> None:
        """Read the range that the run is."""
        run.fill_first(await self._source.read(run.blob, run.offset, run.length))

    async def aclose(self) -> None:
        """Close the source."""
        await self._source.aclose()
