# SPDX-License-Identifier: Apache-2.0
"""Asks several sources in order: what one cannot give, the next one is asked for.

A source that did not answer counts as down for a short while and is then asked
last, never left out: a reader does not wait for its time-out while others
answer, and a chunk that only it has is still found.
"""

from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Sequence
from typing import TypeVar

import trio
from oslo_log import log

from acstor_agent.sources import base
from acstor_common import chunk_map
from acstor_common import errors
from acstor_common import ids

T = TypeVar("T")
LOG = log.getLogger(__name__)

DOWN_S = 5.0
"""How long a source that did not answer is asked last."""

_MOST_USEFUL_FIRST = (errors.SourceUnreachable, errors.ChunkInvalid)


class FailoverSource(base.Source):
    """The first of ``sources`` that can.

    :param sources: at least one, the preferred one first
    """

    def __init__(self, sources: Sequence[base.Source], down_s: float = DOWN_S) -> None:
        self._sources, self._down_s = list(sources), down_s
        self._down_until_s: dict[base.Source, float] = {}

    async def size_bytes(self, blob: base.Blob) -> int:
        """Return the size that the first source with the blob gives."""
        return await self._first(lambda source: source.size_bytes(blob))

    async def stamp(self, blob: base.Blob) -> str:
        """Return the stamp that the first source with the blob gives."""
        return await self._first(lambda source: source.stamp(blob))

    async def read(
        self, blob: base.Blob, offset: int, length: int, content: ids.Content | None = None
    ) -> bytes:
        """Read from the first source that can."""
        return await self._first(lambda source: source.read(blob, offset, length, content))

    def os_hash(self, blob: base.Blob) -> chunk_map.OsHash:
        """Return the hash that the first source which has one knows."""
        known = (source.os_hash(blob) for source in self._sources)
        return next((found for found in known if found.algo), chunk_map.UNKNOWN_OS_HASH)

    async def aclose(self) -> None:
        """Close all the sources."""
        for source in self._sources:
            await source.aclose()

    @property
    def where(self) -> str:
        """All the places, in order."""
        return ", ".join(source.where for source in self._sources)

    @property
    def in_flight(self) -> int:
        """As many as the preferred source can take."""
        return self._sources[0].in_flight

    def _in_order(self) -> list[base.Source]:
        now = trio.current_time()
        return sorted(self._sources, key=lambda source: self._down_until_s.get(source, now) > now)

    async def _first(self, ask: Callable[[base.Source], Awaitable[T]]) -> T:
        failures: list[errors.ChunkUnavailable] = []
        for source in self._in_order():
            try:
                answer = await ask(source)
            except errors.ChunkUnavailable as failure:
                failures.append(failure)
                if isinstance(failure, errors.SourceUnreachable):
                    self._note_down(source, failure)
            else:
                self._note_up(source)
                return answer
        raise most_useful(failures)

    def _note_down(self, source: base.Source, failure: errors.SourceUnreachable) -> None:
        if source not in self._down_until_s:
            LOG.warning("Source %s does not answer: %s", source.where, failure)
        self._down_until_s[source] = trio.current_time() + self._down_s

    def _note_up(self, source: base.Source) -> None:
        if self._down_until_s.pop(source, None) is not None:
            LOG.info("Source %s answers again", source.where)


def most_useful(failures: Sequence[errors.ChunkUnavailable]) -> errors.ChunkUnavailable:
    """Return one error for all of ``failures``, of the class that leaves most hope.

    Unreachable wins over invalid, and that over missing: as long as one place did not answer,
    nobody may conclude that the bytes do not exist.
    """
    if len(failures) == 1:
        return failures[0]
    present = (kind for kind in _MOST_USEFUL_FIRST if any(isinstance(f, kind) for f in failures))
    kind = next(present, errors.ChunkMissing)
    return kind(
        failures[0].what,
        ", ".join(failure.where for failure in failures),
        "; ".join(f"{failure.where}: {failure.why}" for failure in failures),
    )
