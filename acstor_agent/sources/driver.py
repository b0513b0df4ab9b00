# SPDX-License-Identifier: Apache-2.0
"""What a driver is: it fills buffers with the bytes of a place, and knows one kind of place.

The one rule: no piece leaves here before it was checked against its CID, whoever filled its
buffer (:meth:`Run.pieces_filled`).  A buffer belongs to one run alone and is never used again: of a
place that hangs a thread may be left behind which still writes to it.
"""

import abc
from collections.abc import Iterator
from collections.abc import Sequence

import trio
from oslo_config import cfg

from acstor_agent.sources import base
from acstor_agent.sources import chunk_verification
from acstor_common import errors

BUFFERS_PER_CALL = 64
"""Of the 1,024 that the kernel takes (IOV_MAX): so many are 4 MiB."""
RUNS_AT_A_TIME = 4
"""Of one call that needs several, as where a guest has written a qcow2 file at random places."""


class Run:
    """Pieces of a blob that follow each other, and their buffers while a driver fills them.

    :param where: the place, for errors
    """

    def __init__(
        self, blob: base.Blob, pieces: Sequence[base.Piece], where: str, told: base.ReportOutcomes
    ) -> None:
        self.blob, self.pieces = blob, pieces
        self.offset = pieces[0].offset
        self.length = pieces[-1].offset + pieces[-1].length - self.offset
        self.buffers = [bytearray(piece.length) for piece in pieces]
        self._where, self._told = where, told
        self._ends = [piece.offset + piece.length - self.offset for piece in pieces]
        self._checked: list[errors.ChunkInvalid | None] = []
        self._next = 0  # the first piece that was not told of

    @property
    def what(self) -> str:
        """All of it in words, for errors."""
        return self.blob.describe_range(self.offset, self.length)

    @property
    def is_over(self) -> bool:
        """Say whether all has been told."""
        return self._next == len(self.pieces)

    def check(self, count_bytes: int) -> None:
        """Check the pieces that lie in the first ``count_bytes``, in whatever thread.

        BLAKE3 lets go of the interpreter's lock.  What is not checked here :meth:`pieces_filled` checks.
        """
        while (number := len(self._checked)) < len(self.pieces):
            if self._ends[number] > count_bytes:
                return
            self._checked.append(self._fault(number))

    def pieces_filled(self, count_bytes: int) -> None:
        """Tell of the pieces that lie in the first ``count_bytes``, which are in the buffers."""
        first = self._next
        if first < len(self.pieces) and self._ends[first] <= count_bytes:
            self.check(count_bytes)
            self._next = len(self._checked)
            self._told([(n, self._checked[n] or self.buffers[n]) for n in range(first, self._next)])

    def put(self, data: base.Buffer) -> None:
        """Take its first bytes from a driver that has got them in a buffer of its own."""
        view, at = memoryview(data), 0
        for buffer in self.buffers:
            part = view[at : at + len(buffer)]
            buffer[: len(part)] = part
            at += len(part)
            if at == len(view):
                break
        self.pieces_filled(at)

    def pieces_failed(self, error: Exception) -> None:
        """Tell that the rest cannot be had."""
        rest = range(self._next, len(self.pieces))
        self._next = len(self.pieces)
        if rest:
            self._told([(number, error) for number in rest])

    def _fault(self, number: int) -> errors.ChunkInvalid | None:
        piece = self.pieces[number]
        if piece.content is None or piece.content.matches_data(self.buffers[number]):
            return None
        what = self.blob.describe_range(piece.offset, piece.length)
        return chunk_verification.mismatch(self.buffers[number], piece.content, what, self._where)


class Driver(base.Source):
    """A source that reaches a place by itself; installed under the entry points of acstor."""

    @classmethod
    def options(cls) -> list[cfg.Opt]:
        """Options of the source; they are registered in a group ``source_<name>``."""
        return []

    @classmethod
    @abc.abstractmethod
    def from_conf(cls, group: cfg.ConfigOpts.GroupAttr) -> "Driver":
        """Make the source from its option group.

        :raises errors.Unusable: an option is missing or makes no sense
        """

    @abc.abstractmethod
    async def fill_run(self, run: Run) -> None:
        """Fill the buffers of ``run`` in order, and report progress by :meth:`Run.pieces_filled`.

        What cannot be filled is raised; what was said to be filled before stays told.

        :raises errors.ChunkMissing: there is no such blob, or it ends before the run does
        :raises errors.SourceUnreachable: a passing fault
        """

    async def read_pieces(
        self,
        blob: base.Blob,
        pieces: Sequence[base.Piece],
        told: base.ReportOutcomes,
        requester: base.Requester = base.AGENT,
    ) -> None:
        """Read the pieces, those that follow each other as one range."""
        runs = [
            Run(
                blob, pieces[first:stop], self.where, shifted_report(told, first) if first else told
            )
            for first, stop in runs_of(blob, pieces)
        ]
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

    async def _read(self, run: Run) -> None:
        try:
            await self.fill_run(run)
        except errors.ChunkUnavailable as error:
            run.pieces_failed(error)
        if not run.is_over:
            why = "it gave fewer bytes than asked"
            run.pieces_failed(errors.SourceUnreachable(run.what, self.where, why))


def rest_of(
    buffers: Sequence[bytearray | memoryview], count_bytes: int
) -> list[bytearray | memoryview]:
    """Return what is left of ``buffers`` behind ``count_bytes``, as much as one call takes.

    >>> [len(part) for part in rest_of([bytearray(4), bytearray(2)], 3)]
    [1, 2]
    """
    for number, buffer in enumerate(buffers):
        if count_bytes < len(buffer):
            first = memoryview(buffer)[count_bytes:] if count_bytes else buffer
            return [first, *buffers[number + 1 : number + BUFFERS_PER_CALL]]
        count_bytes -= len(buffer)
    return []


def shifted_report(told: base.ReportOutcomes, by: int) -> base.ReportOutcomes:
    """Return what is told of pieces by numbers that are so much lower."""
    return lambda answers: told([(number + by, outcome) for number, outcome in answers])


def check_pieces(blob: base.Blob, pieces: Sequence[base.Piece]) -> None:
    """Refuse what no blob can have.

    :raises errors.LocalProtocolError: a piece has no byte, or lies before the blob
    """
    for offset, length, _ in pieces:
        if offset < 0 or length <= 0:
            why = f"{blob.name}: no range: offset {offset}, length {length}"
            raise errors.LocalProtocolError(why)


def runs_of(blob: base.Blob, pieces: Sequence[base.Piece]) -> Iterator[tuple[int, int]]:
    """Yield where runs of pieces begin and end that follow each other.

    >>> blob = base.Blob(base.ids.ImageId("i"), base.BlobKind.IMAGE)
    >>> list(runs_of(blob, [base.Piece(0, 4), base.Piece(4, 2), base.Piece(8, 1)]))
    [(0, 2), (2, 3)]

    :raises errors.LocalProtocolError: a piece has no byte, or lies before the blob
    """
    check_pieces(blob, pieces)
    first = 0
    for number in range(1, len(pieces)):
        before = pieces[number - 1]
        if before.offset + before.length != pieces[number].offset:
            yield first, number
            first = number
    if pieces:
        yield first, len(pieces)
