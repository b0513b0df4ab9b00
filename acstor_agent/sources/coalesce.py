# SPDX-License-Identifier: Apache-2.0
"""Joins reads: pieces of one blob that follow each other become one read of the place.

A bounded number of inner reads is in flight; what waits for a place is joined.  A free place
is taken one turn of the event loop after the first wish, so that what the tasks of that turn
want is one read and not many.  Who wants a piece that is in flight waits for that one.  Who has
the next place is decided by ``core/turns.py``: guests first, and nobody behind all that
another one wants.

Inner reads run as tasks of the nursery that the caller gives, because none of those who wait for
one may take it with him when he is cancelled.  Each piece is passed on as soon as it is told of.

What waits is bounded: of too many pieces those of the newest call of the one that has most
waiting fail.
"""

import collections
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
_CLOSING = "the source is being closed"


@dataclasses.dataclass(eq=False, slots=True)
class _Call:
    """What one caller waits for, and what it is to be told.

    :param stream: whom it was for when it came
    :param left: pieces that it was not told of
    :ivar waiting: its pieces that wait for a place, by their numbers
    """

    blob: base.Blob
    asker: turns.Asker
    stream: requests.Stream
    told: base.Told
    left: int
    waiting: "dict[int, _Wanted]" = dataclasses.field(default_factory=dict)
    done: trio.Event = dataclasses.field(default_factory=trio.Event)
    answers: list[tuple[int, base.Outcome]] = dataclasses.field(default_factory=list)

    def tell(self) -> None:
        """Tell what has come."""
        answers, self.answers = self.answers, []
        self.left -= len(answers)
        if not self.left:
            self.done.set()
        self.told(answers)


class _Wanted:
    """One piece that somebody wants; it waits for a place, or is in flight.

    :ivar wants: the callers, and which of their pieces it is
    """

    __slots__ = ("is_read", "piece", "wants")

    def __init__(self, piece: base.Piece) -> None:
        self.piece, self.is_read = piece, False
        self.wants: list[tuple[_Call, int]] = []

    def leave(self, call: _Call) -> bool:
        """Forget a caller; say whether nobody is left."""
        self.wants = [want for want in self.wants if want[0] is not call]
        return not self.wants


_Index = dict[tuple[base.Blob, base.Piece], _Wanted]
"""All that is wanted and was not told of."""


class _InnerRead:
    """One read in flight, and its pieces.

    :param index: a piece that was told of, or is given up, is no longer there: none can join it
    """

    def __init__(self, blob: base.Blob, run: list[_Wanted], index: _Index) -> None:
        self.blob, self._index = blob, index
        self.pieces = [wanted.piece for wanted in run]
        self.scope = trio.CancelScope()
        self._left = dict(enumerate(run))

    def leave(self, call: _Call) -> None:
        """Forget a caller; what nobody waits for any more is given up."""
        if all([wanted.leave(call) for wanted in self._left.values()]):
            self.cancel()
            self._left.clear()

    def cancel(self) -> None:
        """Give up what was not told of."""
        for wanted in self._left.values():
            self._index.pop((self.blob, wanted.piece), None)
        self.scope.cancel()

    def tell(self, answers: base.Answers) -> None:
        """Pass on what became of some pieces, to each caller at once."""
        calls: dict[_Call, None] = {}
        for number, outcome in answers:
            wanted = self._left.pop(number, None)
            if wanted is None:  # a source that tells twice is heard once
                continue
            self._index.pop((self.blob, wanted.piece), None)
            for call, its_number in wanted.wants:
                call.answers.append((its_number, outcome))
                calls[call] = None
        for call in calls:
            call.tell()

    def left(self) -> list[int]:
        """Return which pieces were not told of."""
        return list(self._left)


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
        self._wanted: _Index = {}
        self._waiting: dict[_Call, None] = {}
        self._queue: longest_queue.LongestQueueDrop[requests.Stream, _Call] = (
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
        self._take(call, pieces)
        self._start_one()
        try:
            await call.done.wait()
        finally:
            if call.left:
                self._leave(call)

    async def aclose(self) -> None:
        """Stop the inner reads, tell those who wait, close the inner source."""
        for call in list(self._waiting):
            pieces = [wanted.piece for wanted in call.waiting.values()]
            self._fail(call, self._unreachable(call.blob, pieces, _CLOSING))
        for inner_read in self._running:
            inner_read.cancel()
        await self._inner.aclose()

    def _take(self, call: _Call, pieces: Sequence[base.Piece]) -> None:
        """Let a call wait for its pieces; those that are in flight need no place."""
        blob, index, waiting = call.blob, self._wanted, call.waiting
        for number, piece in enumerate(pieces):
            wanted = index.get((blob, piece))
            if wanted is None:
                wanted = index[blob, piece] = _Wanted(piece)
            wanted.wants.append((call, number))
            if not wanted.is_read:
                waiting[number] = wanted
        if waiting:
            self._waiting[call] = None
            for loser in self._queue.enter(call.stream, call, len(waiting)):
                self._fail(loser, self._crowded(loser))

    def _stop_waiting(self, call: _Call) -> dict[int, _Wanted]:
        """Take a call's pieces that wait out of the line; return them."""
        self._waiting.pop(call, None)
        self._queue.leave(call.stream, call)
        waiting, call.waiting = call.waiting, {}
        for wanted in waiting.values():
            if wanted.leave(call):
                self._wanted.pop((call.blob, wanted.piece), None)
        return waiting

    def _fail(self, call: _Call, error: Exception) -> None:
        """Tell a caller that it waits in vain."""
        call.answers += [(number, error) for number in self._stop_waiting(call)]
        call.tell()

    def _crowded(self, call: _Call) -> errors.SourceCrowded:
        """Return the error for one who waits no more: he may ask again later, or elsewhere."""
        stream = call.stream
        why = f"{self._queue.limit} reads wait for it already, most of them for {stream}"
        untold = self._said.left_out(stream, trio.current_time())
        if untold is not None:
            LOG.warning("%s: %s; its newest fail (and %d like it)", self.where, why, untold)
        first = next(iter(call.waiting.values())).piece
        what = call.blob.part(first.offset, first.length)
        return errors.SourceCrowded(what, self.where, why)

    def _leave(self, call: _Call) -> None:
        """Forget a caller that was cancelled; what nobody waits for is not read."""
        self._stop_waiting(call)
        for inner_read in self._running:
            inner_read.leave(call)

    def _start_one(self) -> None:
        """Let a task look for an inner read to begin, unless one does so: it lets the next one."""
        if not self._is_starting and self._waiting and len(self._running) < self._in_flight:
            self._is_starting = True
            self._nursery.start_soon(self._work)

    def _next(self) -> _Call | None:
        if not self._waiting or len(self._running) >= self._in_flight:
            return None
        firsts: dict[requests.Stream, _Call] = {}
        for call in self._waiting:
            firsts.setdefault(call.asker.stream, call)
        chosen = self._turns.next_of(list(firsts))
        return None if chosen is None else list(firsts.values())[chosen]

    async def _work(self) -> None:
        """Perform inner reads as long as there is one to begin."""
        self._is_starting = False
        try:
            while (first := self._next()) is not None:
                inner_read, stream = self._begin(first), first.asker.stream
                self._turns.took(stream)
                self._start_one()
                await self._perform(inner_read, stream)
        finally:  # where this task is cancelled the next one is, too, and tells those who wait
            if self._next() is not None:
                self._start_one()

    def _begin(self, first: _Call) -> _InnerRead:
        """Begin to read what follows the first piece, but for what is less urgent: it can wait."""
        klass = first.asker.stream.klass
        near = [
            wanted
            for call in self._waiting
            if call.blob == first.blob and call.asker.stream.klass <= klass
            for wanted in call.waiting.values()
        ]
        run = run_around(next(iter(first.waiting.values())), near, self._max_bytes)
        taken: collections.Counter[_Call] = collections.Counter()
        for wanted in run:
            wanted.is_read = True
            for call, number in wanted.wants:
                del call.waiting[number]
                taken[call] += 1
        for call, count in taken.items():
            self._queue.lighten(call.stream, call, count)
            if not call.waiting:
                del self._waiting[call]
        inner_read = _InnerRead(first.blob, run, self._wanted)
        self._running.append(inner_read)
        return inner_read

    async def _perform(self, inner_read: _InnerRead, stream: requests.Stream) -> None:
        blob, pieces = inner_read.blob, inner_read.pieces
        failure, why = None, _CLOSING
        try:
            with inner_read.scope:
                await self._inner.read_pieces(blob, pieces, inner_read.tell)
                why = "it told nothing of it"
        except Exception as error:  # whatever it is, it belongs to those who asked
            failure = error
        finally:
            self._running.remove(inner_read)
            self._turns.gave_back(stream)
            if left := inner_read.left():
                outcome = failure or self._unreachable(blob, pieces, why)
                inner_read.tell([(number, outcome) for number in left])

    def _unreachable(
        self, blob: base.Blob, pieces: Sequence[base.Piece], why: str
    ) -> errors.SourceUnreachable:
        length = sum([piece.length for piece in pieces])
        return errors.SourceUnreachable(blob.part(pieces[0].offset, length), self.where, why)


def run_around(first: _Wanted, near: Iterable[_Wanted], max_bytes: int) -> list[_Wanted]:
    """Return pieces that follow each other, ``first`` among them.

    What follows ``first`` is added before what lies ahead; together they have at most
    ``max_bytes``, unless ``first`` alone has more.
    """
    after: dict[int, _Wanted] = {}
    before: dict[int, _Wanted] = {}
    for wanted in near:
        offset, length, _ = wanted.piece
        after[offset] = before[offset + length] = wanted
    start, length, _ = first.piece
    stop = start + length
    limit = max(max_bytes, length)
    run, ahead = [first], []
    while (one := after.get(stop)) and stop + one.piece.length - start <= limit:
        run.append(one)
        stop += one.piece.length
    while (one := before.get(start)) and stop - one.piece.offset <= limit:
        ahead.append(one)
        start = one.piece.offset
    return [*reversed(ahead), *run]
