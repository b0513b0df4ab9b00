# SPDX-License-Identifier: Apache-2.0
"""A source that injects faults, repeatable by a seed."""

import random
from collections.abc import Collection

import trio

from acstor_agent.sources import base
from acstor_common import errors
from acstor_common.model import ids
from tests.fakes import reading_source


class FaultySource(reading_source.ReadingSource, base.Wrapper):
    """Relays reads; injects faults into those with the given numbers (from 1).

    :param fail: these raise ``error``
    :param corrupt: these have one byte changed, at a seeded place
    :param truncate: these return too few bytes
    :param delay: these answer ``delay_s`` late
    :param share: probability that any other read fails
    """

    def __init__(
        self,
        inner: base.Source,
        *,
        fail: Collection[int] = (),
        corrupt: Collection[int] = (),
        truncate: Collection[int] = (),
        delay: Collection[int] = (),
        share: float = 0.0,
        delay_s: float = 1.0,
        error: type[errors.ChunkUnavailable] = errors.SourceUnreachable,
        seed: int = 0,
    ) -> None:
        super().__init__(inner)
        self._fail, self._corrupt, self._truncate = fail, corrupt, truncate
        self._delay, self._delay_s, self._error = delay, delay_s, error
        self._share, self._rng = share, random.Random(seed)
        self.reads: list[tuple[int, int]] = []
        self.in_flight_now = 0
        self.in_flight_most = 0
        self.in_flight_bytes = self.in_flight_bytes_most = 0
        self.is_closed = False

    async def read(
        self, blob: base.Blob, offset: int, length: int, content: ids.Content | None = None
    ) -> bytes:
        """Read, with the fault that is due."""
        self.reads.append((offset, length))
        self.in_flight_now += 1
        self.in_flight_most = max(self.in_flight_most, self.in_flight_now)
        self.in_flight_bytes += length
        self.in_flight_bytes_most = max(self.in_flight_bytes_most, self.in_flight_bytes)
        try:
            return await self._read(len(self.reads), blob, offset, length)
        finally:
            self.in_flight_now -= 1
            self.in_flight_bytes -= length

    async def aclose(self) -> None:
        """Close, and record it."""
        self.is_closed = True
        await self._inner.aclose()

    async def _read(self, nth: int, blob: base.Blob, offset: int, length: int) -> bytes:
        if nth in self._delay:
            await trio.sleep(self._delay_s)
        if nth in self._fail or self._rng.random() < self._share:
            raise self._error(
                blob.describe_range(offset, length), self.location, f"read {nth} fails by order"
            )
        data = await self._inner.read(blob, offset, length)
        if nth in self._truncate:
            return data[:-1]
        if nth in self._corrupt:
            at = self._rng.randrange(length)
            return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
        return data


class MemorySource(reading_source.ReadingSource):
    """Blobs in memory; each read is one trio checkpoint."""

    def __init__(self, blobs: dict[base.Blob, bytes]) -> None:
        self._blobs = blobs

    @property
    def location(self) -> str:
        """The name of the source."""
        return "memory"

    async def size_bytes(self, blob: base.Blob) -> int:
        """Return the blob's length."""
        await trio.lowlevel.checkpoint()
        return len(self._bytes(blob))

    async def read(
        self, blob: base.Blob, offset: int, length: int, content: ids.Content | None = None
    ) -> bytes:
        """Return a range of the blob."""
        await trio.lowlevel.checkpoint()
        data = self._bytes(blob)[offset : offset + length]
        if len(data) < length:
            raise errors.ChunkMissing(
                blob.describe_range(offset, length), self.location, "the blob ends before"
            )
        return data

    async def aclose(self) -> None:
        """Do nothing."""

    def _bytes(self, blob: base.Blob) -> bytes:
        if blob not in self._blobs:
            raise errors.ChunkMissing(blob.file_name, self.location, "there is no such blob")
        return self._blobs[blob]
