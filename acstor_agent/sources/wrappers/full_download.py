# SPDX-License-Identifier: Apache-2.0
"""Full download: one stream of a whole blob into an unlinked file of this host.

Readers use the received part while the rest arrives. A broken stream is restarted from the
beginning, and skips the received part. It accepts no more bytes than Glance's record states.
"""

import contextlib
import dataclasses
import hashlib
import logging
import os
import pathlib
import random
import tempfile
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Iterator
from typing import TypeVar

import trio

from acstor_agent.core.sources import attempt_timeout
from acstor_agent.sources import base
from acstor_agent.sources import driver
from acstor_agent.sources import glance
from acstor_agent.sources.http_client import http_response
from acstor_common import errors
from acstor_common.model import geometry
from acstor_common.util import backoff

LOG = logging.getLogger(__name__)

WRITE_BYTES = geometry.MIB  # bytes written at a time; fewer if a reader waits for them
WINDOW_S = 60.0

_KINDS = (
    errors.SourceUnreachable,
    errors.ChunkInvalid,
    errors.ChunkRefused,
    errors.ChunkMissing,
    errors.ChunkUnavailable,
)

T = TypeVar("T")
StreamBlob = Callable[[http_response.ReceivePart], Awaitable[None]]
"""Passes the whole blob to a callback, part by part."""


@dataclasses.dataclass(frozen=True)
class StreamLimits:
    """Limits of one stream, which counts as broken below ``min_bytes`` in ``window_s``."""

    window_s: float = WINDOW_S
    min_bytes: int = int(WINDOW_S * attempt_timeout.SLOWEST_BYTES_PER_S)
    max_attempts: int = 10
    max_failures: int = 3  # in a row, without progress
    min_pause_s: float = 0.5  # between attempts
    max_pause_s: float = 10.0


class _Enough(Exception):
    """Ends a stream when all requested bytes are here."""


class FullDownload:
    """One download; call :meth:`download_all` in a block of :meth:`download_during`."""

    def __init__(
        self,
        blob: base.Blob,
        location: glance.BlobLocation,
        end_bytes: int,
        where: str,
        limiter: trio.CapacityLimiter,
        limits: StreamLimits = StreamLimits(),
    ) -> None:
        self.blob, self.location, self.end_bytes = blob, location, end_bytes
        self.received_bytes = 0  # can be read
        self.failure: errors.ChunkUnavailable | None = None  # why no more arrives
        self.last_used_s = self.checked_s = trio.current_time()  # last use, last check in Glance
        self.scope = trio.CancelScope()
        self._where, self._limiter, self._limits = where, limiter, limits
        self._descriptor = -1
        self._closed: trio.Event | None = None
        self._readers = 0
        self.has_reserved_space = self.is_dropped = False  # disk space is reserved
        self._moved = trio.Event()
        self._stops: list[int] = []  # offsets that readers wait for
        self._held: list[bytes] = []  # arrived and not written
        self._taken_bytes = self._streamed_bytes = 0  # of the blob; of the current stream
        self._window, self._window_bytes = trio.CancelScope(), 0
        self._writing, self._writer = trio.Lock(), trio.CapacityLimiter(1)  # own thread

    @property
    def is_over(self) -> bool:
        """Whether no more of it arrives."""
        return self.failure is not None or self.received_bytes >= self.end_bytes

    @property
    def is_idle(self) -> bool:
        """Whether no more of it arrives and it has no readers."""
        return self.is_over and not self._readers

    @property
    def is_complete_or_running(self) -> bool:
        """Whether the whole blob is here or arrives."""
        return self.failure is None and self.end_bytes == self.location.size_bytes

    @property
    def reserved_bytes(self) -> int:
        """Bytes of disk space that it will still take."""
        is_coming = self.has_reserved_space and not self.is_over
        return self.end_bytes - self.received_bytes if is_coming else 0

    @property
    def progress(self) -> str:
        """Its progress in words."""
        return f"{self.received_bytes} of {self.end_bytes} bytes were received"

    @contextlib.contextmanager
    def hold_open(self) -> Iterator[None]:
        """Keep the file open during the block."""
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
            self.last_used_s = trio.current_time()
            self._close_unused()

    async def wait_for(self, stop: int, until_s: float) -> None:
        """Wait until the bytes before ``stop`` are here; raise ChunkUnavailable at ``until_s``."""
        self._stops.append(stop)
        try:
            with trio.move_on_at(until_s):
                while self.received_bytes < stop:
                    if self.failure is not None:
                        raise self.new_failure(stop)
                    if self._taken_bytes >= stop and self._held:
                        await self._write()
                    else:
                        await self._moved.wait()
        finally:
            self._stops.remove(stop)
        if self.received_bytes < stop:
            why = f"it is downloaded as one stream, which is not there yet: {self.progress}"
            raise errors.ChunkRefused(self.blob.file_name, self._where, why)

    def new_failure(self, stop: int) -> errors.ChunkUnavailable:
        """Return a new error of the same class as :attr:`failure`, for a reader."""
        assert self.failure is not None
        kind = next(kind for kind in _KINDS if isinstance(self.failure, kind))
        return kind(f"{self.blob.file_name} up to byte {stop}", self._where, self.failure.why)

    async def read_into(self, run: driver.BlobRun, count_bytes: int) -> int:
        """Fill a run from ``count_bytes`` on; return the new count, or raise SourceUnreachable."""

        def read() -> int:
            left = driver.rest_of(run.buffers, count_bytes)
            got = os.preadv(self._descriptor, left, run.offset + count_bytes)
            run.check_pieces(count_bytes + got)
            return count_bytes + got

        try:
            return await self.in_thread(read)
        except OSError as error:
            why = f"its copy cannot be read: {error.strerror}"
            raise errors.SourceUnreachable(run.description, self._where, why) from error

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run blocking work in a thread."""
        return await trio.to_thread.run_sync(work, limiter=self._limiter)

    def drop(self) -> None:
        """Stop the download; delete the file when it has no readers."""
        self.is_dropped = True
        self.scope.cancel()
        self._close_unused()

    async def wait_deleted(self) -> None:
        """Wait until the file of a dropped copy without readers is deleted."""
        if self._closed is not None:
            await self._closed.wait()

    def _close_unused(self) -> None:
        if self.is_dropped and self.is_idle and self._descriptor >= 0:
            self._closed = _close_soon(self._descriptor)
            self._descriptor = -1

    @contextlib.contextmanager
    def download_during(self) -> Iterator[None]:
        """Run the download in the block; :attr:`failure` says how it ended."""
        try:
            with self.scope:
                yield
        except errors.ChunkUnavailable as error:
            self.failure = error
        except OSError as error:
            self.failure = self._of_disk(error)
        finally:
            if not self.is_over:
                why = "it is no longer needed on this host"
                self.failure = errors.SourceUnreachable(self.blob.file_name, self._where, why)
            self._wake_readers()
            self._close_unused()

    async def download_all(
        self, folder: pathlib.Path, rng: random.Random, stream_blob: StreamBlob
    ) -> None:
        """Download all to the file system of ``folder``; raise ChunkUnavailable or OSError."""
        self._descriptor = await self.in_thread(lambda: _open_unlinked(folder))
        await self._stream(stream_blob, rng)
        if self.end_bytes == self.location.size_bytes:
            await self._check_hash()

    async def _stream(self, stream_blob: StreamBlob, rng: random.Random) -> None:
        failures, limits = 0, self._limits
        for left in reversed(range(limits.max_attempts)):
            before = self.received_bytes
            self._streamed_bytes = 0
            try:
                return await self._once(stream_blob)
            except errors.SourceUnreachable as error:
                await self._write()
                failures = 0 if self.received_bytes > before else failures + 1
                if not left or failures == limits.max_failures:
                    raise
                LOG.info("%s; restarting the download, %s", error, self.progress)
            pause_s = backoff.pause_s(failures, limits.min_pause_s, limits.max_pause_s)
            await trio.sleep(pause_s * rng.uniform(0.5, 1))

    async def _once(self, stream_blob: StreamBlob) -> None:
        self._window_bytes, limits = 0, self._limits
        with trio.move_on_after(limits.window_s) as self._window, contextlib.suppress(_Enough):
            await stream_blob(self._take)
        if self._window.cancelled_caught:
            why = f"less than {limits.min_bytes} bytes of it arrived in {limits.window_s:g} s"
            raise errors.SourceUnreachable(self.blob.file_name, self._where, why)
        await self._write()

    async def _take(self, part: bytes) -> None:
        fresh = part[max(0, self._taken_bytes - self._streamed_bytes) :]
        self._streamed_bytes += len(part)
        self._window_bytes += len(part)
        if self._window_bytes >= self._limits.min_bytes:
            self._window.deadline = trio.current_time() + self._limits.window_s
            self._window_bytes = 0
        if fresh:
            self._held.append(fresh[: self.end_bytes - self._taken_bytes])
            self._taken_bytes += len(self._held[-1])
        taken = self._taken_bytes
        is_awaited = any(self.received_bytes < stop <= taken for stop in self._stops)
        if is_awaited or taken - self.received_bytes >= WRITE_BYTES or taken == self.end_bytes:
            await self._write()
        if self.received_bytes == self.end_bytes < self.location.size_bytes:
            raise _Enough

    async def _write(self) -> None:
        """Write what has arrived, which is kept until then, even if the caller is cancelled."""
        async with self._writing:
            count, data = len(self._held), b"".join(self._held)
            if not data:
                return
            try:
                await trio.to_thread.run_sync(
                    _write_all, self._descriptor, data, self.received_bytes, limiter=self._writer
                )
            except OSError as error:
                self.failure = self._of_disk(error)  # later parts cannot be written either
                raise self.failure from error
            del self._held[:count]
            self.received_bytes += len(data)
            self.last_used_s = trio.current_time()
            self._wake_readers()

    async def _check_hash(self) -> None:
        """Compare an artefact with Glance's hash; chunks have CIDs."""
        os_hash = self.location.os_hash
        if (
            self.blob.kind not in glance.ARTEFACTS
            or os_hash.algo not in hashlib.algorithms_available
        ):
            return

        def hashed() -> bytes:
            found, at = hashlib.new(os_hash.algo), 0
            while part := os.pread(self._descriptor, WRITE_BYTES, at):
                found.update(part)
                at += len(part)
            return found.digest()

        with self.hold_open():
            actual = await self.in_thread(hashed)
        if actual != os_hash.value:
            why = f"its {os_hash.algo} is {actual.hex()[:16]}…, not what Glance has"
            raise errors.ChunkInvalid(self.blob.file_name, self._where, why)

    def _of_disk(self, error: OSError) -> errors.ChunkRefused:
        why = f"its copy cannot be written: {error.strerror}"
        return errors.ChunkRefused(self.blob.file_name, self._where, why)

    def _wake_readers(self) -> None:
        self._moved.set()
        self._moved = trio.Event()


def _open_unlinked(folder: pathlib.Path) -> int:
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        return os.dup(file.fileno())


def _close_soon(descriptor: int) -> trio.Event:
    """Close a file in a thread, since deletion takes seconds per GiB."""
    closed, token = trio.Event(), trio.lowlevel.current_trio_token()

    def notify(_: object) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(closed.set)

    trio.lowlevel.start_thread_soon(lambda: os.close(descriptor), notify)
    return closed


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count
