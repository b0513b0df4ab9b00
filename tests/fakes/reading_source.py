# SPDX-License-Identifier: Apache-2.0
"""For sources of tests that say what one read of a range gives, and nothing more."""

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


class _Reading(driver.Driver):
    """The driver of a source that has only ``read``."""

    def __init__(self, source: base.Source) -> None:
        self._source = source

    @classmethod
    def from_conf(cls, group: object) -> "_Reading":
        """No option makes one."""
        raise errors.Unusable("a test's source", "it has no options", "Make it")

    @property
    def where(self) -> str:
        """The source's place."""
        return self._source.where

    async def size_bytes(self, blob: base.Blob) -> int:
        """Ask the source."""
        return await self._source.size_bytes(blob)

    async def fill_run(self, run: driver.Run) -> None:
        """Read the range that the run is."""
        run.put(await self._source.read(run.blob, run.offset, run.length))

    async def aclose(self) -> None:
        """Close the source."""
        await self._source.aclose()
