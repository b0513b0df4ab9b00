# SPDX-License-Identifier: Apache-2.0
"""Joins reads: ranges of one blob that touch become one read of the place.

A bounded number of inner reads is in flight; what waits for a place is what is
joined, so nothing is delayed while there are free ones.  A read inside a range
that is already in flight waits for that one.  Who has the next place is decided
by ``core/turns.py``: guests first, and nobody behind all that another one wants.

Inner reads run as tasks of the nursery that the caller gives, because none of
those who wait for one may take it with him when he is cancelled.  The CID is
not passed on: a joined range has none, so verify belongs outside.

What waits is bounded: of too many reads the newest of the one that has most waiting fails.
"""

import copy
import dataclasses
import logging

import trio

from acstor_agent import disk_io
from acstor_agent.core import log_limit
from acstor_agent.core import longest_queue
from acstor_agent.core import turns
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.sources import base
from acstor_common import errors
from acstor_common import geometry
from acstor_common import ids

LOG = logging.getLogger(__name__)

WAITING_LIMIT = 8192
"""Reads that wait for a place: a guest has 512 at most, and so has a peer."""
WARN_EVERY_S = 60.0


@dataclasses.dataclass(eq=False, slots=True)
class _Want:
    """What one caller waits for, and then its answer.

    ``stream`` is whom it was for when it came.
    """

    blob: base.Blob
    start: int
    stop: int
    asker: turns.Asker
    stream: requests.Stream
    done: trio.Event = dataclasses.field(default_factory=trio.Event)
    answer: bytes | Exception = b""

    def settle(self, answer: bytes | Exception) -> None:
        """Give the caller its answer."""
        self.answer = answer
        self.done.set()


@dataclasses.dataclass(eq=False, slots=True)
class _InnerRead:
    """One read in flight and those who wait for it."""

    wants: list[_Want]
    start: int
    stop: int
    scope: trio.CancelScope = dataclasses.field(default_factory=trio.CancelScope)

    def holds(self, want: _Want) -> bool:
        """Say whether the answer to ``want`` will be part of this read's."""
        return (
            not self.scope.cancel_called
            and self.wants[0].blob == want.blob
            and self.start <= want.start
            and want.stop <= self.stop
        )

    def settle(self, answer: bytes | Exception) -> None:
        """Give every caller its part of the bytes, or the one error."""
        for want in self.wants:
            if isinstance(answer, Exception):
                want.settle(answer)
            else:
                want.settle(answer[want.start - self.start : want.stop - self.start])


class CoalesceSource(base.Wrapper):
    """Joins concurrent reads of touching ranges.

    :param nursery: where the inner reads run; when it is cancelled, those who wait are told
    :param in_flight: inner reads at a time; what the inner source says if not given
    :param max_bytes: reads are not joined beyond this length; a longer one is sent as it is
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
        self._waiting: list[_Want] = []
        self._queue: longest_queue.LongestQueueDrop[requests.Stream, _Want] = (
            longest_queue.LongestQueueDrop(WAITING_LIMIT)
        )
        self._said = log_limit.LogLimit(WARN_EVERY_S)
        self._running: list[_InnerRead] = []

    @property
    def in_flight(self) -> int:
        """Inner reads at a time."""
        return self._in_flight

    async def read(
        self, blob: base.Blob, offset: int, length: int, content: ids.Content | None = None
    ) -> bytes:
        """Read the range, with others where it can be."""
        base.check_range(blob, offset, length)
        if length == 0:
            return b""
        asker = disk_io.asker()
        want = _Want(blob, offset, offset + length, asker, asker.stream)
        want.asker.when_hurried = self._start_some  # a guest may have a place that others may not
        self._take(want)
        try:
            await want.done.wait()
        finally:
            self._leave(want)
        if isinstance(want.answer, Exception):
            # A copy for each, because a traceback grows with every raise.
            raise copy.copy(want.answer) from want.answer
        return want.answer

    async def aclose(self) -> None:
        """Stop the inner reads, tell those who wait, close the inner source."""
        for want in self._waiting:
            self._queue.leave(want.stream, want)
            want.settle(self._closed(want))
        self._waiting.clear()
        for inner_read in self._running:
            inner_read.scope.cancel()
        await self._inner.aclose()

    def _take(self, want: _Want) -> None:
        inner_read = next((r for r in self._running if r.holds(want)), None)
        if inner_read is not None:
            inner_read.wants.append(want)
        else:
            self._waiting.append(want)
            for loser in self._queue.enter(want.stream, want, 1):
                self._refuse(loser)
            self._start_some()

    def _refuse(self, want: _Want) -> None:
        """Take out one who waits and tell him so: he may ask again later, or elsewhere."""
        self._waiting.remove(want)
        why = f"{self._queue.limit} reads wait for it already, most of them for {want.stream}"
        what = want.blob.part(want.start, want.stop - want.start)
        want.settle(errors.SourceCrowded(what, self.where, why))
        untold = self._said.left_out(want.stream, trio.current_time())
        if untold is not None:
            LOG.warning("%s: %s; its newest fail (and %d like it)", self.where, why, untold)

    def _leave(self, want: _Want) -> None:
        """Forget a caller that is served or was cancelled; what nobody waits for is not read."""
        if want.done.is_set():
            return
        if want in self._waiting:
            self._waiting.remove(want)
            self._queue.leave(want.stream, want)
            return
        inner_read = next(r for r in self._running if want in r.wants)
        if inner_read.wants == [want]:
            inner_read.scope.cancel()
        else:
            inner_read.wants.remove(want)

    def _start_some(self) -> None:
        while (first := self._next()) is not None:
            inner_read = join_around_first([first, *self._waiting], self._max_bytes)
            taken = set(inner_read.wants)
            for want in taken:
                self._queue.leave(want.stream, want)
            self._waiting = [want for want in self._waiting if want not in taken]
            self._running.append(inner_read)
            stream = first.asker.stream
            self._turns.took(stream)
            self._nursery.start_soon(self._perform, inner_read, stream)

    def _next(self) -> _Want | None:
        if not self._waiting or len(self._running) >= self._in_flight:
            return None
        firsts: dict[requests.Stream, _Want] = {}
        for want in self._waiting:
            firsts.setdefault(want.asker.stream, want)
        chosen = self._turns.next_of(list(firsts))
        return None if chosen is None else list(firsts.values())[chosen]

    async def _perform(self, inner_read: _InnerRead, stream: requests.Stream) -> None:
        blob, length = inner_read.wants[0].blob, inner_read.stop - inner_read.start
        answer: bytes | Exception = self._closed(inner_read.wants[0])
        try:
            with inner_read.scope:
                answer = await self._inner.read(blob, inner_read.start, length)
        except Exception as error:  # whatever it is, it belongs to those who asked
            answer = error
        finally:
            self._running.remove(inner_read)
            self._turns.gave_back(stream)
            inner_read.settle(answer)
            self._start_some()

    def _closed(self, want: _Want) -> errors.SourceUnreachable:
        what = want.blob.part(want.start, want.stop - want.start)
        return errors.SourceUnreachable(what, self.where, "the source is being closed")


def join_around_first(wants: list[_Want], max_bytes: int) -> _InnerRead:
    """Return the first of ``wants`` and those that touch it, directly or through others.

    What follows is added before what lies ahead; together they have at most ``max_bytes``,
    unless the first alone has more.
    """
    first = wants[0]
    joined = _InnerRead([first], first.start, first.stop)
    limit = max(max_bytes, first.stop - first.start)
    others = sorted(
        (w for w in wants if w is not first and w.blob == first.blob), key=lambda w: w.start
    )
    after = [w for w in others if w.start >= first.start]
    before = [w for w in reversed(others) if w.start < first.start]
    for want in after + before:
        start, stop = min(joined.start, want.start), max(joined.stop, want.stop)
        touches = want.start <= joined.stop and joined.start <= want.stop
        if touches and stop - start <= limit:
            joined.wants.append(want)
            joined.start, joined.stop = start, stop
    return joined
