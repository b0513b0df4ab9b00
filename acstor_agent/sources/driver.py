# SPDX-License-Identifier: Apache-2.0
"""Interface of a driver: it fills buffers with the bytes of one kind of place.

Pieces are verified against their CIDs before they are reported (:meth:`BlobRun.pieces_filled`). A
buffer belongs to one run and is not reused, since an abandoned thread may still write to it.
"""

import abc
from collections.abc import Iterator
from collections.abc import Sequence

import trio
from oslo_config import cfg

from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.sources import base
from acstor_agent.sources import chunk_verification
from acstor_agent.sources import host_grants
from acstor_common import errors

BUFFERS_PER_CALL = 64  # buffers of one system call (IOV_MAX is 1,024): 4 MiB of chunks
BATCH_S = 0.1
"""Time between reports of a background fill's pieces: each report costs turns and a thread."""
RUNS_AT_A_TIME = 4  # concurrent runs of one call, as for a fragmented qcow2 file


class BlobRun:
    """Adjacent pieces of a blob, and the buffers that a driver fills."""

    def __init__(
        self,
        blob: base.Blob,
        pieces: Sequence[base.BlobPiece],
        where: str,
        report: base.ReportOutcomes,
    ) -> None:
        self.blob, self.pieces = blob, pieces
        self.offset = pieces[0].offset
        self.length = pieces[-1].offset + pieces[-1].length - self.offset
        self.buffers = [bytearray(piece.length) for piece in pieces]
        self._where, self._report = where, report
        self._ends = [piece.offset + piece.length - self.offset for piece in pieces]
        self._checked: list[errors.ChunkInvalid | None] = []
        self._next = 0  # first piece that is not reported

    @property
    def description(self) -> str:
        """The whole range in words, for errors."""
        return self.blob.describe_range(self.offset, self.length)

    @property
    def is_over(self) -> bool:
        """Whether all pieces are reported."""
        return self._next == len(self.pieces)

    def check_pieces(self, count_bytes: int) -> None:
        """Check pieces of the first ``count_bytes``, in any thread: BLAKE3 releases the lock."""
        while (number := len(self._checked)) < len(self.pieces):
            if self._ends[number] > count_bytes:
                return
            self._checked.append(self._fault(number))

    def pieces_filled(self, count_bytes: int) -> None:
        """Report the pieces in the first ``count_bytes`` of the buffers."""
        first = self._next
        if first < len(self.pieces) and self._ends[first] <= count_bytes:
            self.check_pieces(count_bytes)
            self._next = len(self._checked)
            self._report(
                [(n, self._checked[n] or self.buffers[n]) for n in range(first, self._next)]
            )

    def fill_first(self, data: base.Buffer) -> None:
        """Copy the first bytes from a driver's own buffer."""
        view, at = memoryview(data), 0
        for buffer in self.buffers:
            part = view[at : at + len(buffer)]
            buffer[: len(part)] = part
            at += len(part)
            if at == len(view):
                break
        self.pieces_filled(at)

    def pieces_failed(self, error: Exception) -> None:
        """Report the remaining pieces as failed."""
        rest = range(self._next, len(self.pieces))
        self._next = len(self.pieces)
        if rest:
            self._report([(number, error) for number in rest])

    def _fault(self, number: int) -> errors.ChunkInvalid | None:
        piece = self.pieces[number]
        if piece.content is None or piece.content.matches_data(self.buffers[number]):
            return None
        what = self.blob.describe_range(piece.offset, piece.length)
        return chunk_verification.mismatch(self.buffers[number], piece.content, what, self._where)


class _Batch:
    """Outcomes that are reported together."""

    def __init__(self, report: base.ReportOutcomes) -> None:
        self.outcomes: list[tuple[int, base.Outcome]] = []
        self._report = report

    def report(self) -> None:
        if self.outcomes:
            outcomes = self.outcomes.copy()
            self.outcomes.clear()  # the same list, which others extend
            self._report(outcomes)

    async def report_regularly(self) -> None:
        while True:
            await trio.sleep(BATCH_S)
            self.report()


class Driver(base.Source):
    """A source that reaches a place by itself; installed as an entry point."""

    @classmethod
    def options(cls) -> list[cfg.Opt]:
        """Return the options of the group ``source_<name>``."""
        return []

    @classmethod
    @abc.abstractmethod
    def from_conf(cls, group: cfg.ConfigOpts.GroupAttr) -> "Driver":
        """Create the source from its option group; raise Unusable if one is missing or invalid."""

    def prefer_location(self, levels: Sequence[str]) -> None:
        """Prefer copies at the host's location, the widest level first; by default does nothing."""

    def use_grants(self, grants: host_grants.HostGrants | None) -> None:
        """Use this host's grants for images, if any; by default does nothing."""

    @abc.abstractmethod
    async def fill_run(self, run: BlobRun) -> None:
        """Fill the buffers in order, and report progress by :meth:`BlobRun.pieces_filled`.

        Pieces reported as filled stay valid if the rest fails.

        :raises errors.ChunkMissing: there is no such blob, or it is too short
        :raises errors.SourceUnreachable: a transient fault
        """

    async def read_pieces(self, request: base.PieceRequest) -> None:
        """Read pieces, adjacent ones as one range."""
        if request.requester.klass is not requests.Klass.FILL:
            await self._read_all(list(runs_of(request, self.location)))
            return
        batch = _Batch(request.report)
        runs = list(runs_of(request._replace(report=batch.outcomes.extend), self.location))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(batch.report_regularly)
            await self._read_all(runs)
            nursery.cancel_scope.cancel()
        batch.report()

    async def _read_all(self, runs: Sequence[BlobRun]) -> None:
        if len(runs) == 1:  # nearly always
            await self._read(runs[0])
            return
        left = iter(runs)

        async def read_next() -> None:
            for run in left:
                await self._read(run)

        async with trio.open_nursery() as nursery:
            for _ in runs[:RUNS_AT_A_TIME]:
                nursery.start_soon(read_next)

    async def _read(self, run: BlobRun) -> None:
        try:
            await self.fill_run(run)
        except errors.ChunkUnavailable as error:
            run.pieces_failed(error)
        if not run.is_over:
            why = "it returned fewer bytes than requested"
            run.pieces_failed(errors.SourceUnreachable(run.description, self.location, why))


def rest_of(
    buffers: Sequence[bytearray | memoryview], count_bytes: int
) -> list[bytearray | memoryview]:
    """Return what is left of ``buffers`` after ``count_bytes``, for one system call.

    >>> [len(part) for part in rest_of([bytearray(4), bytearray(2)], 3)]
    [1, 2]
    """
    for number, buffer in enumerate(buffers):
        if count_bytes < len(buffer):
            first = memoryview(buffer)[count_bytes:] if count_bytes else buffer
            return [first, *buffers[number + 1 : number + BUFFERS_PER_CALL]]
        count_bytes -= len(buffer)
    return []


def shifted_report(report: base.ReportOutcomes, by: int) -> base.ReportOutcomes:
    """Return a callback for pieces whose numbers are lower by ``by``."""
    if not by:
        return report
    return lambda answers: report([(number + by, outcome) for number, outcome in answers])


def check_pieces(blob: base.Blob, pieces: Sequence[base.BlobPiece]) -> None:
    """Check ranges, or raise LocalProtocolError if a piece is empty, or has a negative offset."""
    for offset, length, _ in pieces:
        if offset < 0 or length <= 0:
            why = f"{blob.file_name}: invalid range: offset {offset}, length {length}"
            raise errors.LocalProtocolError(why)


def runs_of(request: base.PieceRequest, where: str) -> Iterator[BlobRun]:
    """Yield the runs of adjacent pieces of a request.

    >>> blob = base.Blob(base.ids.ImageId("i"), base.BlobKind.IMAGE)
    >>> pieces = [base.BlobPiece(0, 4), base.BlobPiece(4, 2), base.BlobPiece(8, 1)]
    >>> [run.description for run in runs_of(base.PieceRequest(blob, pieces, print), "memory")]
    ['i.raw bytes 0-5', 'i.raw bytes 8-8']

    :raises errors.LocalProtocolError: a piece is empty, or has a negative offset
    """
    blob, pieces = request.blob, request.pieces
    check_pieces(blob, pieces)
    first = 0
    for stop, before in enumerate(pieces, 1):
        if stop == len(pieces) or before.offset + before.length != pieces[stop].offset:
            yield BlobRun(blob, pieces[first:stop], where, shifted_report(request.report, first))
            first = stop
