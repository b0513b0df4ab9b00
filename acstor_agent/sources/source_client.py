# SPDX-License-Identifier: Apache-2.0
"""Client of the sources: performs the attempts that ``core/sources/source_request`` selects."""

import contextlib
import random
import time
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple
from typing import TypeVar

import trio
from oslo_log import log

from acstor_agent.core import health_issues
from acstor_agent.core.sources import failover
from acstor_agent.core.sources import source_request
from acstor_agent.engine.ring import placement
from acstor_agent.sources import base
from acstor_agent.sources.wrappers import download_source
from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.model import ids

T = TypeVar("T")
LOG = log.getLogger(__name__)

_Read = Callable[[base.Source, Sequence[int], base.ReportOutcomes], Awaitable[None]]
"""Reads the pieces with these numbers from a source; reports outcomes by index."""


class SourceStatus(NamedTuple):
    """State of one source."""

    location: str
    issue: health_issues.HealthIssue | None  # why it is down, or what it refuses
    health: base.Health


class SourceClient(base.Source):
    """Several sources as one (see ``source_factory.Sources``)."""

    def __init__(
        self,
        sources: Sequence[base.Source],
        configured: Sequence[str] = (),
        copies: download_source.DownloadSource | None = None,
        read_copies: base.Source | None = None,
        attempts: int = failover.ATTEMPTS,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        words = configured or [""] * len(sources)
        states = [*map(failover.SourceState, sources, words)]
        self.failover = failover.Failover(states, jitter, time, LOG, attempts)
        self._sources = dict(zip(states, sources, strict=True))
        self._copies = copies
        if copies is not None:
            self._sources[self.failover.copies] = read_copies or copies

    async def size_bytes(self, blob: base.Blob) -> int:
        """Return the size of a blob from the first source that has it."""
        what = f"the size of {blob.file_name}"
        return await self._ask(blob, what, lambda source: source.size_bytes(blob))

    async def find_blob(self, blob: base.Blob) -> base.BlobState:
        """Return the state of a blob from the first source that has it."""
        return await self._ask(
            blob, f"the state of {blob.file_name}", lambda source: source.find_blob(blob)
        )

    async def read_pieces(self, request: base.PieceRequest) -> None:
        """Read each piece from the first source that gives it."""
        blob, pieces = request.blob, request.pieces

        async def read(
            source: base.Source, numbers: Sequence[int], took: base.ReportOutcomes
        ) -> None:
            if source is self._sources.get(self.failover.copies):
                self._start_image_copy(blob)
            some = [pieces[n] for n in numbers]
            await source.read_pieces(request._replace(pieces=some, report=took))

        if pieces:
            await self._run(_Wanted(blob, self._copies, pieces), read, request.report)

    def source_access(self, image_id: ids.ImageId, offset: int) -> placement.SourceAccess:
        """Return how an offset of an image is served."""
        if self._copies is None or not self.failover.refused:
            return placement.SourceAccess.IN_PARTS
        blob, _ = base.blob_at(image_id, offset)
        if blob not in self.failover.refused:
            return placement.SourceAccess.IN_PARTS
        return (
            placement.SourceAccess.WHOLE_HERE
            if self._copies.has_copy(blob)
            else placement.SourceAccess.WHOLE
        )

    def os_hash(self, blob: base.Blob) -> chunk_map.OsHash:
        """Return the hash that the copies know if they serve the blob, else a source's."""
        if self._copies is not None and _key(blob) in self.failover.refused:
            return self._copies.os_hash(blob)
        known = (self._sources[state].os_hash(blob) for state in self.failover.sources)
        return next((found for found in known if found.algo), chunk_map.UNKNOWN_OS_HASH)

    async def aclose(self) -> None:
        """Close the copies and all sources."""
        if self._copies is not None:
            await self._copies.aclose()
        for state in self.failover.sources:
            await self._sources[state].aclose()

    @property
    def location(self) -> str:
        """All places, in order."""
        return ", ".join(state.location for state in self.failover.sources)

    @property
    def max_concurrent_reads(self) -> int:
        """The limit of the preferred source."""
        return self._sources[self.failover.sources[0]].max_concurrent_reads

    @property
    def rtt_s(self) -> float:
        """The preferred source's."""
        return self._sources[self.failover.sources[0]].rtt_s

    def list_statuses(self) -> list[SourceStatus]:
        """Return the state of each source; may be called from any thread."""
        return [
            SourceStatus(
                state.location, self.failover.fault_of(state), self._sources[state].source_health()
            )
            for state in self.failover.sources
        ]

    async def _ask(
        self, blob: base.Blob, what: str, ask: Callable[[base.Source], Awaitable[T]]
    ) -> T:
        """Return the first answer; ask the sources even if they refused the blob recently."""
        answers: list[tuple[int, T | errors.ChunkUnavailable]] = []

        async def read(source: base.Source, _: Sequence[int], took: Callable[..., None]) -> None:
            took([(0, await ask(source))])

        wanted = _Wanted(blob, self._copies, what=what)
        await self._run(wanted, read, answers.extend, ignores_refusals=True)
        [(_, outcome)] = answers
        if isinstance(outcome, errors.ChunkUnavailable):
            raise outcome
        return outcome

    async def _run(
        self,
        wanted: "_Wanted",
        read: _Read,
        report: Callable[..., None],
        ignores_refusals: bool = False,
    ) -> None:
        known, now, until_s = self.failover, trio.current_time(), trio.current_effective_deadline()
        sources = (
            known.ordered_sources(now) if ignores_refusals else known.sources_of(wanted.key, now)
        )
        with contextlib.closing(
            source_request.SourceRequest(known, wanted, until_s, sources)
        ) as request:
            run = _Attempts(self._sources, request, read, report)
            await (run.hedged() if request.may_hedge else run.alone())
        if run.fault is not None:
            raise run.fault
        if request.left:
            report(request.list_failures())

    def _start_image_copy(self, blob: base.Blob) -> None:
        """Start the copy of an image whose boot image is read from copies."""
        image = base.Blob(blob.image_id, base.BlobKind.IMAGE)
        if blob.kind is base.BlobKind.BOOT_IMAGE and image in self.failover.refused:
            assert self._copies is not None
            self._copies.begin_download(blob.image_id)


class _Wanted:
    """Pieces of a blob, or one fact about it: ``what`` in words."""

    def __init__(
        self,
        blob: base.Blob,
        copies: download_source.DownloadSource | None,
        pieces: Sequence[base.BlobPiece] = (),
        what: str = "",
    ) -> None:
        self.key, self.image_id, self.count = _key(blob), blob.image_id, len(pieces) or 1
        self._blob, self._copies, self._pieces, self._what = blob, copies, pieces, what

    def describe_piece(self, number: int) -> str:
        if self._what:
            return self._what
        return self._blob.describe_range(self._pieces[number].offset, self._pieces[number].length)

    def may_copy(self) -> bool:
        return self._copies is not None and self._copies.can_serve(self._blob)


class _Attempts:
    def __init__(
        self,
        sources: dict[failover.SourceState, base.Source],
        request: source_request.SourceRequest,
        read: _Read,
        report: base.ReportOutcomes,
    ) -> None:
        self._sources, self._request, self._read, self._report = sources, request, read, report
        self._changed = trio.Event()
        self.fault: Exception | None = None  # a bug in a source or in the callback

    async def alone(self) -> None:
        while self.fault is None and (attempt := self._next()):
            await self._attempt(attempt)

    async def hedged(self) -> None:
        async with trio.open_nursery() as nursery:
            while self.fault is None:
                self._changed = trio.Event()
                if attempt := self._next():
                    nursery.start_soon(self._attempt, attempt)
                if self._request.is_over:
                    break
                with trio.move_on_at(self._request.next_s(trio.current_time())):
                    await self._changed.wait()
            nursery.cancel_scope.cancel()

    def _next(self) -> source_request.Attempt | None:
        attempt = self._request.next_attempt(trio.current_time())
        if attempt is not None and (final := self._request.final_failures(attempt)):
            self._report(final)
        return attempt

    async def _attempt(self, attempt: source_request.Attempt) -> None:
        request = self._request

        def took(answers: base.Outcomes) -> None:
            if final := request.record_outcomes(attempt, answers, trio.current_time()):
                self._report(final)
            if not request.left:
                self._changed.set()

        try:
            while request.begin_attempt(attempt):
                try:
                    await self._read(self._sources[attempt.source], attempt.numbers, took)
                except errors.ChunkUnavailable as failure:  # for all pieces without an outcome
                    took([(at, failure) for at in sorted(attempt.unreported)])
                if (pause_s := request.attempt_ended(attempt, trio.current_time())) is None:
                    break
                await trio.sleep(pause_s)
        except Exception as fault:
            self.fault = fault
        finally:
            request.end_attempt(attempt)
            self._changed.set()


def _key(blob: base.Blob) -> base.Blob:
    """Return the blob under which refusals are kept: the image for its stored qcow2."""
    is_stored = blob.kind is base.BlobKind.QCOW2
    return base.Blob(blob.image_id, base.BlobKind.IMAGE) if is_stored else blob
