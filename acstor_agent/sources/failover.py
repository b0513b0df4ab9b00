# SPDX-License-Identifier: Apache-2.0
"""Asks several sources in order: what one cannot give, the next one is asked for.

A source that did not answer counts as down for a short while and is then asked
last, never left out: a reader does not wait for its time-out while others
answer, and a chunk that only it has is still found (``core/sources/circuit_breaker.py``).

One that is silent for longer than sources usually are is hedged: the next one is
asked as well, and the first answer counts.  If the silent one has answered
nobody meanwhile it is down, and all who wait for it go on to the next one.  As
among peers a hedge costs bytes, so only a small share of all reads is hedged
(``engine/hedge.py``), and one more at a time, unless the source is known to be down.
"""

import time
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Sequence
from typing import Generic
from typing import NamedTuple
from typing import TypeVar

import trio
from oslo_log import log

from acstor_agent.core import troubles
from acstor_agent.core.sources import circuit_breaker
from acstor_agent.core.sources import refusals
from acstor_agent.engine import hedge as hedge_
from acstor_agent.sources import base
from acstor_common import chunk_map
from acstor_common import errors
from acstor_common import ids

T = TypeVar("T")
LOG = log.getLogger(__name__)

DOWN_S = circuit_breaker.FIRST_PAUSE_S
"""How long a source that did not answer is asked last, at first."""
SILENT_SHORTEST_S, SILENT_FIRST_S, SILENT_LONGEST_S = 1.0, 2.0, 5.0
"""After how long a silent source is hedged: at least, while little is known, and at most."""
TICK_S = 0.25
"""How often one who may not hedge looks whether he may."""

_MOST_USEFUL_FIRST = (
    errors.SourceUnreachable,
    errors.ChunkInvalid,
    errors.SourceRefused,
    errors.ChunkRefused,
)


class PlaceState(NamedTuple):
    """How one source does.

    :param trouble: why it counts as down, or what it refuses, and since when; None: nothing
    """

    where: str
    trouble: troubles.Trouble | None
    health: base.Health


class _Place:
    """One source, and what is known of it."""

    def __init__(self, source: base.Source, down_s: float, configured: str) -> None:
        self.source = source
        self.configured = f" ({configured})" if configured else ""
        self.breaker = circuit_breaker.CircuitBreaker(down_s)
        self.trouble: troubles.Trouble | None = None
        self.refusals = refusals.Refusals()
        self.is_hedged = False
        """One who waits for it has asked the next source though there was no budget for it."""


class FailoverSource(base.Source):
    """The first of ``sources`` that can.

    :param sources: at least one, the preferred one first
    :param clock: tells the wall clock, for operators
    :param configured: which options name each source, and as whom it is asked, for operators
    """

    def __init__(
        self,
        sources: Sequence[base.Source],
        down_s: float = DOWN_S,
        clock: Callable[[], float] = time.time,
        configured: Sequence[str] = (),
    ) -> None:
        self.hedge = hedge_.HedgeBudget(SILENT_SHORTEST_S, SILENT_FIRST_S, SILENT_LONGEST_S)
        self._places = [
            _Place(source, down_s, words)
            for source, words in zip(sources, configured or [""] * len(sources), strict=True)
        ]
        self._clock = clock

    async def size_bytes(self, blob: base.Blob) -> int:
        """Return the size that the first source with the blob gives."""
        return await self._first(blob, lambda place: place.source.size_bytes(blob))

    async def look(self, blob: base.Blob) -> base.Seen:
        """Return what the first source with the blob has."""
        return await self._first(blob, lambda place: place.source.look(blob))

    async def read_pieces(
        self,
        blob: base.Blob,
        pieces: Sequence[base.Piece],
        told: base.Told,
        requester: base.Requester = base.AGENT,
    ) -> None:
        """Read each piece from the first source that can."""
        if not pieces:
            return
        question = _Question(self, blob, pieces, told, requester)
        hedge = self._hedge(blob, question.ask, question.is_answered)
        question.when_answered = hedge.won
        await hedge.run()
        question.give_up()

    def os_hash(self, blob: base.Blob) -> chunk_map.OsHash:
        """Return the hash that the first source which has one knows."""
        known = (place.source.os_hash(blob) for place in self._places)
        return next((found for found in known if found.algo), chunk_map.UNKNOWN_OS_HASH)

    async def aclose(self) -> None:
        """Close all the sources."""
        for place in self._places:
            await place.source.aclose()

    @property
    def where(self) -> str:
        """All the places, in order."""
        return ", ".join(place.source.where for place in self._places)

    @property
    def in_flight(self) -> int:
        """As many as the preferred source can take."""
        return self._places[0].source.in_flight

    def places(self) -> list[PlaceState]:
        """Return how each source does; may be called from any thread."""
        return [
            PlaceState(
                place.source.where,
                place.trouble or place.refusals.trouble(self._clock()),
                place.source.health(),
            )
            for place in self._places
        ]

    async def _first(self, blob: base.Blob, ask: Callable[[_Place], Awaitable[T]]) -> T:
        hedge = self._hedge(blob, ask)
        await hedge.run()
        return hedge.answer()

    def _hedge(
        self,
        blob: base.Blob,
        ask: Callable[[_Place], Awaitable[T]],
        is_answered: Callable[[], bool] = lambda: False,
    ) -> "_Hedge[T]":
        now_s = trio.current_time()
        in_order = sorted(self._places, key=lambda place: not place.breaker.may_be_first(now_s))
        return _Hedge(self, blob, in_order, ask, is_answered)

    # What hedges tell

    def note_answer(self, place: _Place) -> None:
        """Note that a source has answered."""
        self.hedge.answered(place.breaker.answered(trio.current_time()))
        if place.trouble is not None:
            place.trouble = None
            LOG.info("Source %s answers again", place.source.where)

    def note_refused(
        self, place: _Place, image_id: ids.ImageId, failure: errors.SourceRefused
    ) -> None:
        """Note that a source refuses what it is to give."""
        why = failure.why + place.configured
        if place.refusals.note(image_id, why, self._clock()):
            LOG.warning("Source %s refuses %s: %s", place.source.where, failure.what, why)

    def note_down(self, place: _Place, why: str) -> None:
        """Note that a source does not answer."""
        why += place.configured
        if place.breaker.failed(trio.current_time()):
            LOG.warning("Source %s does not answer: %s", place.source.where, why)
        since_s = place.trouble.since_s if place.trouble else self._clock()
        place.trouble = troubles.Trouble(why, since_s)


class _Hedge(Generic[T]):
    """One question, and the sources that are asked it: one after the other, or beside each other.

    :param in_order: the sources that are left
    :param is_answered: says whether nothing is left to ask, though no source has given all
    """

    def __init__(
        self,
        source: FailoverSource,
        blob: base.Blob,
        in_order: Sequence[_Place],
        ask: Callable[[_Place], Awaitable[T]],
        is_answered: Callable[[], bool],
    ) -> None:
        self._source, self._ask, self._is_answered = source, ask, is_answered
        self._image_id, self._left = blob.image_id, list(in_order)
        self._under_way: dict[_Place, float] = {}  # since when
        self._hedged: list[_Place] = []
        self._changed = trio.Event()
        self._answers: list[T] = []
        self._winner: _Place | None = None
        self._failures: list[errors.ChunkUnavailable] = []
        self._fault: Exception | None = None

    async def run(self) -> None:
        """Ask until one has answered, all have failed, or nothing is left to ask."""
        if len(self._left) > 1:
            await self._ask_all()
        else:  # nobody to hedge
            await self._ask_one(self._enter(self._left.pop()))
        if self._fault and not self._answers:
            raise self._fault

    async def _ask_all(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                while not self._is_over():
                    if self._left and (not self._under_way or self._may_race()):
                        nursery.start_soon(self._ask_one, self._enter(self._left.pop(0)))
                    await self._wait()
                nursery.cancel_scope.cancel()
        finally:
            for place in self._hedged:
                place.is_hedged = False

    def answer(self) -> T:
        """Return the first answer.

        :raises errors.ChunkUnavailable: there was none
        """
        if self._answers:
            return self._answers[0]
        raise most_useful(self._failures)

    def won(self, winner: _Place) -> None:
        """Note that a source has given all that was left to ask, whoever else is still asked."""
        self._winner = winner
        self._source.note_answer(winner)
        self._note_losers(winner)
        self._changed.set()

    def _is_over(self) -> bool:
        is_any_left = self._left or self._under_way
        is_decided = bool(self._answers) or self._fault is not None or self._is_answered()
        return is_decided or not is_any_left

    def _last(self) -> _Place:
        return next(reversed(self._under_way))

    def _may_race(self) -> bool:
        """Say whether the source that was asked last is so late that the next one is asked, too."""
        place, now_s = self._last(), trio.current_time()
        if now_s < self._late_s():
            return False
        if place.breaker.is_down or self._source.hedge.may_hedge():
            return True
        if place.is_hedged or now_s < place.breaker.silent_since_s + SILENT_LONGEST_S:
            return False
        place.is_hedged = True
        self._hedged.append(place)
        return True

    def _late_s(self) -> float:
        return self._last().breaker.silent_since_s + self._source.hedge.delay_s

    async def _wait(self) -> None:
        """Wait until a source has answered or failed, or one is late."""
        self._changed = trio.Event()
        until_s = float("inf")
        if self._left and self._under_way:
            until_s = max(self._late_s(), trio.current_time() + TICK_S)
        with trio.move_on_at(until_s):
            await self._changed.wait()

    def _enter(self, place: _Place) -> _Place:
        now_s = self._under_way[place] = trio.current_time()
        place.breaker.asked(now_s)
        return place

    async def _ask_one(self, place: _Place) -> None:
        try:
            if self._is_answered():  # meanwhile: this source has no part in it
                return
            answer = await self._ask(place)
        except errors.ChunkUnavailable as failure:
            self._failures.append(failure)
            self._note_failure(place, failure)
        except Exception as fault:  # a bug of a source; it is raised where it was asked
            self._fault = fault
        else:
            self._answers.append(answer)
            place.refusals.given(self._image_id)
            if self._winner is None:
                self.won(place)
            elif self._winner is not place:
                self._source.note_answer(place)
        finally:
            place.breaker.left()
            self._under_way.pop(place, None)
            self._changed.set()

    def _note_failure(self, place: _Place, failure: errors.ChunkUnavailable) -> None:
        if _is_no_answer(failure):
            self._source.note_down(place, failure.why)
        elif not isinstance(failure, errors.SourceCrowded):
            self._source.note_answer(place)
            if isinstance(failure, errors.SourceRefused):
                self._source.note_refused(place, self._image_id, failure)

    def _note_losers(self, winner: _Place) -> None:
        """Take those for down that were asked before and have answered nobody since then."""
        won_s = self._under_way.get(winner, 0.0)
        for place, asked_s in self._under_way.items():
            since_s = place.breaker.silent_since_s
            if place is not winner and max(asked_s, since_s) <= won_s:
                silent_s = trio.current_time() - since_s
                why = f"no answer for {silent_s:.1f} s, while {winner.source.where} answered"
                self._source.note_down(place, why)


class _Question:
    """Pieces that are asked for, of one source after the other, or of several beside each other.

    The first who gives a piece counts; the next source is asked for what is left.
    """

    def __init__(
        self,
        source: FailoverSource,
        blob: base.Blob,
        pieces: Sequence[base.Piece],
        told: base.Told,
        requester: base.Requester,
    ) -> None:
        self._source, self._blob, self._told = source, blob, told
        self._requester = requester
        self.when_answered: Callable[[_Place], None] = lambda place: None
        """Is told who has given the last piece, as soon as that is here."""
        self._left = dict(enumerate(pieces))
        self._failures: dict[int, list[errors.ChunkUnavailable]] = {}

    def is_answered(self) -> bool:
        """Say whether all pieces are here."""
        return not self._left

    async def ask(self, place: _Place) -> None:
        """Ask one source for what is left.

        :raises errors.ChunkUnavailable: it has not given all of that
        """
        asked = list(self._left)
        failures: list[errors.ChunkUnavailable] = []
        to_come = len(asked)

        def took(answers: base.Answers) -> None:
            nonlocal to_come
            to_come -= len(answers)
            given = []
            for at, outcome in answers:
                number = asked[at]
                if isinstance(outcome, errors.ChunkUnavailable):
                    failures.append(outcome)
                    self._failures.setdefault(number, []).append(outcome)
                elif self._left.pop(number, None) is not None:
                    given.append((number, outcome))
            if given:
                self._told(given)
            if given and not self._left:
                self.when_answered(place)
            elif to_come and any(_is_answer(outcome) for _, outcome in answers):
                self._source.note_answer(place)  # the last one is noted with all of the question

        pieces = [self._left[number] for number in asked]
        await place.source.read_pieces(self._blob, pieces, took, self._requester)
        if failures:
            raise _most_telling(failures)

    def give_up(self) -> None:
        """Tell of what nobody gave."""
        left, self._left = self._left, {}
        if left:
            self._told([(number, self._failure(number, piece)) for number, piece in left.items()])

    def _failure(self, number: int, piece: base.Piece) -> errors.ChunkUnavailable:
        what = self._blob.part(piece.offset, piece.length)
        if number in self._failures:
            return most_useful(self._failures[number], what)
        return errors.SourceUnreachable(what, self._source.where, "it told nothing of it")


def _most_telling(failures: Sequence[errors.ChunkUnavailable]) -> errors.ChunkUnavailable:
    """Return the failure that says most of a source: that it does not answer, if one does."""
    return next((f for f in failures if _is_no_answer(f)), failures[0])


def _is_answer(outcome: base.Outcome) -> bool:
    return not isinstance(outcome, errors.SourceUnreachable)


def _is_no_answer(failure: errors.ChunkUnavailable) -> bool:
    is_crowd = isinstance(failure, errors.SourceCrowded)  # it was not asked at all
    return isinstance(failure, errors.SourceUnreachable) and not is_crowd


def most_useful(
    failures: Sequence[errors.ChunkUnavailable], what: str = ""
) -> errors.ChunkUnavailable:
    """Return one error for all of ``failures``, of the class that leaves most hope.

    Unreachable wins over invalid, that over refused, and that over missing: as long as one place
    did not answer, nobody may conclude that the bytes do not exist.

    :param what: what it is about, where they are about more
    """
    if len(failures) == 1:
        return failures[0]
    present = (kind for kind in _MOST_USEFUL_FIRST if any(isinstance(f, kind) for f in failures))
    kind = next(present, errors.ChunkMissing)
    where = ", ".join(failure.where for failure in failures)
    why = "; ".join(f"{failure.where}: {failure.why}" for failure in failures)
    return kind(what or failures[0].what, where, why)
