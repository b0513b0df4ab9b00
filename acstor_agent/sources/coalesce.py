# SPDX-License-Identifier: Apache-2.0
"""Joins reads: pieces of one blob that follow each other become one read of the place.

A bounded number of inner reads is in flight; what waits for a place is joined.  A free place
is taken one turn of the event loop after the first wish, so that what the tasks of that turn
want is one read and not many.  Who wants a piece that is in flight waits for that one.  Who has
the next place is decided by ``core/turns.py``: guests first, and nobody behind all that
another one wants.

Inner reads run as tasks of the nursery that the caller gives, because none of those who wait for
one may take it with him when he is cancelled.  Each piece is passed on as soon as it is told of.

What waits is bounded: of too many pieces the newest of the one that has most waiting fail.
"""

import dataclasses
import logging
from collections.abc import Iterable
from collections.abc import Sequence

import trio

from acstor_agent import disk_io
from acstor_agent.core import log_limit
from acstor_agent.core import longest_queue
from acstor_agent.core import turns
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.sources import base
from acstor_agent.sources import driver
from acstor_common import errors
from acstor_common import geometry

LOG = logging.getLogger(__name__)

WAITING_LIMIT = 8192
"""Pieces that wait for a place: a guest has 512 at most, and so has a peer."""
WARN_EVERY_S = 60.0


@dataclasses.dataclass(eq=False, slots=True)
class _Call:
    """What one caller waits for, and what it is to be told.

    :param stream: whom it was for when it came
    :param left: pieces that it was not told of
    """

    blob: base.Blob
    asker: turns.Asker
    stream: requests.Stream
    told: base.Told
    left: int
    done: trio.Event = dataclasses.field(default_factory=trio.Event)
    answers: list[tuple[int, base.Outcome]] = dataclasses.field(default_factory=list)

    def tell(self) -> None:
        """Tell what has come."""
        answers, self.answers = self.answers, []
        self.left -= len(answers)
        if not self.left:
            self.done.set()
        self.told(answers)


@dataclasses.dataclass(eq=False, slots=True)
class _Want:
    """One piece that one caller wants."""

    call: _Call
    number: int
    piece: base.Piece


class _InnerRead:
    """One read in flight: its pieces, and for each one those who wait for it."""

    def __init__(self, wanted: list[list[_Want]]) -> None:
        self.blob = wanted[0][0].call.blob
        self.pieces = [wants[0].piece for wants in wanted]
        self.scope = trio.CancelScope()
        self._wanted: dict[int, list[_Want]] = dict(enumerate(wanted))
        self._numbers = {piece: number for number, piece in enumerate(self.pieces)}

    def join(self, want: _Want) -> bool:
        """Let one more wait for a piece; say whether it is still to come."""
        wants = self._wanted.get(self._numbers.get(want.piece, -1))
        if wants is None or self.blob != want.call.blob or self.scope.cancel_called:
            return False
        wants.append(want)
        return True

    def leave(self, call: _Call) -> None:
        """Forget a caller; what nobody waits for any more is given up."""
        for wants in self._wanted.values():
            wants[:] = [want for want in wants if want.call is not call]
        if not any(self._wanted.values()):
            self.scope.cancel()

    def tell(self, answers: base.Answers) -> None:
        """Pass on what became of some pieces."""
        settle(
            (want, outcome)
            for number, outcome in answers
            for want in self._wanted.pop(number, ())  # a source that tells twice is heard once
        )

    def end(self, error: Exception) -> None:
        """Tell those who wait still that they do so in vain."""
        self.tell([(number, error) for number in self._wanted])


def settle(outcomes: Iterable[tuple[_Want, base.Outcome]]) -> None:
    """Tell what became of wanted pieces, each caller once."""
    calls: dict[_Call, None] = {}
    for want, outcome in outcomes:
        want.call.answers.append((want.number, outcome))
        calls[want.call] = None
    for call in calls:
        call.tell()


class CoalesceSource(base.Wrapper):
    """Joins concurrent reads of pieces that follow each other.

    :param nursery: where the inner reads run; when it is cancelled, those who wait are told
    :param in_flight: inner reads at a time; what the inner source says if not given
    :param max_bytes: pieces are not joined beyond this length; a longer one is sent as it is
    """

    def __init__(
        self,
        inner: base.Source,
        nursery: trio.Nursery,
        in_flight: int | None = None,
        max_bytes: int = geometry.MIB,
    ) -> None:
        super().__init__(inner)
        self._nursery, self._max_bytes = nursery, max_bytes
        self._in_flight = in_flight or inner.in_flight
        self._turns = turns.Turns(self._in_flight)
        self._waiting: dict[_Want, None] = {}
        self._queue: longest_queue.LongestQueueDrop[requests.Stream, _Want] = (
            longest_queue.LongestQueueDrop(WAITING_LIMIT)
        )
        self._said = log_limit.LogLimit(WARN_EVERY_S)
        self._running: list[_InnerRead] = []
        self._is_starting = False

    @property
    def in_flight(self) -> int:
        """Inner reads at a time."""
        return self._in_flight

    async def read_pieces(
        self, blob: base.Blob, pieces: Sequence[base.Piece], told: base.Told
    ) -> None:
        """Read the pieces, with others where it can be."""
        driver.check_pieces(blob, pieces)
        if not pieces:
            return
        asker = disk_io.asker()
        call = _Call(blob, asker, asker.stream, told, len(pieces))
        asker.when_hurried = self._start_one  # a guest may have a place that others may not
        for number, piece in enumerate(pieces):
            self._take(_Want(call, number, piece))
        self._start_one()
        try:
            await call.done.wait()
        finally:
            if call.left:
                self._leave(call)

    async def aclose(self) -> None:
        """Stop the inner reads, tell those who wait, close the inner source."""
        waiting, self._waiting = self._waiting, {}
        for want in waiting:
            self._queue.leave(want.call.stream, want)
        settle((want, self._closed(want.call.blob, [want.piece])) for want in waiting)
        for inner_read in self._running:
            inner_read.scope.cancel()
        await self._inner.aclose()

    def _take(self, want: _Want) -> None:
        if any(inner_read.join(want) for inner_read in self._running):
            return
        self._waiting[want] = None
        losers = self._queue.enter(want.call.stream, want, 1)
        for loser in losers:
            del self._waiting[loser]
        settle((loser, self._crowded(loser)) for loser in losers)

    def _crowded(self, want: _Want) -> errors.SourceCrowded:
        """Return the error for one who waits no more: he may ask again later, or elsewhere."""
        stream = want.call.stream
        why = f"{self._queue.limit} reads wait for it already, most of them for {stream}"
        untold = self._said.left_out(stream, trio.current_time())
        if untold is not None:
            LOG.warning("%s: %s; its newest fail (and %d like it)", self.where, why, untold)
        what = want.call.blob.part(want.piece.offset, want.piece.length)
        return errors.SourceCrowded(what, self.where, why)

    def _leave(self, call: _Call) -> None:
        """Forget a caller that was cancelled; what nobody waits for is not read."""
        for want in [want for want in self._waiting if want.call is call]:
            del self._waiting[want]
            self._queue.leave(call.stream, want)
        for inner_read in self._running:
            inner_read.leave(call)

    def _start_one(self) -> None:
        """Let a task look for an inner read to begin, unless one does so: it lets the next one."""
        if not self._is_starting and self._waiting and len(self._running) < self._in_flight:
            self._is_starting = True
            self._nursery.start_soon(self._work)

    def _next(self) -> _Want | None:
        if not self._waiting or len(self._running) >= self._in_flight:
            return None
        firsts: dict[requests.Stream, _Want] = {}
        for want in self._waiting:
            firsts.setdefault(want.call.asker.stream, want)
        chosen = self._turns.next_of(list(firsts))
        return None if chosen is None else list(firsts.values())[chosen]

    async def _work(self) -> None:
        """Perform inner reads as long as there is one to begin."""
        self._is_starting = False
        try:
            while (first := self._next()) is not None:
                inner_read, stream = self._begin(first), first.call.asker.stream
                self._turns.took(stream)
                self._start_one()
                await self._perform(inner_read, stream)
        finally:  # where this task is cancelled the next one is, too, and tells those who wait
            if self._next() is not None:
                self._start_one()

    def _begin(self, first: _Want) -> _InnerRead:
        wanted = run_around(first, self._as_urgent(first), self._max_bytes)
        for wants in wanted:
            for want in wants:
                del self._waiting[want]
                self._queue.leave(want.call.stream, want)
        inner_read = _InnerRead(wanted)
        self._running.append(inner_read)
        return inner_read

    def _as_urgent(self, first: _Want) -> list[_Want]:
        """Return what may be read with the first: what is less urgent would only make it late."""
        klass = first.call.asker.stream.klass
        pieces = {
            (want.call.blob, want.piece)
            for want in self._waiting
            if want.call.asker.stream.klass <= klass
        }
        return [want for want in self._waiting if (want.call.blob, want.piece) in pieces]

    async def _perform(self, inner_read: _InnerRead, stream: requests.Stream) -> None:
        blob, pieces = inner_read.blob, inner_read.pieces
        failure: Exception = self._closed(blob, pieces)
        try:
            with inner_read.scope:
                await self._inner.read_pieces(blob, pieces, inner_read.tell)
                failure = self._unreachable(blob, pieces, "it told nothing of it")
        except Exception as error:  # whatever it is, it belongs to those who asked
            failure = error
        finally:
            self._running.remove(inner_read)
            self._turns.gave_back(stream)
            inner_read.end(failure)

    def _closed(self, blob: base.Blob, pieces: Sequence[base.Piece]) -> errors.SourceUnreachable:
        return self._unreachable(blob, pieces, "the source is being closed")

    def _unreachable(
        self, blob: base.Blob, pieces: Sequence[base.Piece], why: str
    ) -> errors.SourceUnreachable:
        length = sum(piece.length for piece in pieces)
        return errors.SourceUnreachable(blob.part(pieces[0].offset, length), self.where, why)


def run_around(first: _Want, wants: Iterable[_Want], max_bytes: int) -> list[list[_Want]]:
    """Return pieces that follow each other, ``first`` among them, each with all who want it.

    What follows ``first`` is added before what lies ahead; together they have at most
    ``max_bytes``, unless ``first`` alone has more.
    """
    by_piece: dict[base.Piece, list[_Want]] = {}
    for want in wants:
        if want.call.blob == first.call.blob:
            by_piece.setdefault(want.piece, []).append(want)
    after = {piece.offset: piece for piece in by_piece}
    before = {piece.offset + piece.length: piece for piece in by_piece}
    run = [first.piece]
    start, stop = first.piece.offset, first.piece.offset + first.piece.length
    limit = max(max_bytes, stop - start)
    while (piece := after.get(stop)) and stop + piece.length - start <= limit:
        run.append(piece)
        stop += piece.length
    ahead = []
    while (piece := before.get(start)) and stop - piece.offset <= limit:
        ahead.append(piece)
        start = piece.offset
    return [by_piece[piece] for piece in (*reversed(ahead), *run)]
