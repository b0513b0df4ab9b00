# SPDX-License-Identifier: Apache-2.0
import random

import pytest
import trio
import trio.testing

from acstor_agent import disk_io
from acstor_agent.core import turns
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.sources import base
from acstor_agent.sources import coalesce
from acstor_common import errors
from acstor_common import ids
from tests.fakes import faulty_source
from tests.fakes import piecewise

BLOB = base.Blob(ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"), base.BlobKind.IMAGE)
OTHER = base.Blob(BLOB.image_id, base.BlobKind.CHUNK_MAP)
DATA = random.Random(1).randbytes(4_000)
ALWAYS = range(1, 1_000)


def slow(**faults):
    """Return a source each of whose reads takes a second of the test's clock."""
    memory = faulty_source.MemorySource({BLOB: DATA, OTHER: DATA[::-1]})
    return faulty_source.FaultySource(memory, delay=ALWAYS, **faults)


class Readers:
    """Tasks that read, and what became of them."""

    def __init__(self, source, nursery):
        self.source, self.nursery = source, nursery
        self.outcomes = {}
        self.scopes = {}

    async def start(self, name, offset, length, blob=BLOB):
        self.nursery.start_soon(self._read, name, offset, length, blob)
        await trio.testing.wait_all_tasks_blocked()

    async def _read(self, name, offset, length, blob):
        with trio.CancelScope() as self.scopes[name]:
            try:
                self.outcomes[name] = await self.source.read(blob, offset, length)
            except errors.ChunkUnavailable as error:
                self.outcomes[name] = error


@pytest.fixture
def clock(autojump_clock):
    return autojump_clock


async def test_lone_read_is_sent_at_once_and_as_it_is(clock, nursery):
    inner = slow()
    readers = Readers(coalesce.CoalesceSource(inner, nursery), nursery)
    started = trio.current_time()
    await readers.start("lone", 7, 5)
    assert inner.reads == [(7, 5)]
    assert trio.current_time() == started
    await trio.sleep(1.1)
    assert readers.outcomes == {"lone": DATA[7:12]}


async def test_waiting_neighbours_become_one_read(clock, nursery):
    inner = slow()
    readers = Readers(coalesce.CoalesceSource(inner, nursery, in_flight=1), nursery)
    for name, offset in [("busy", 3_000), ("b", 100), ("c", 200), ("a", 0), ("far", 900)]:
        await readers.start(name, offset, 100)
    await trio.sleep(5)
    assert inner.reads == [(3_000, 100), (0, 300), (900, 100)]
    assert readers.outcomes["a"] == DATA[:100]
    assert readers.outcomes["b"] == DATA[100:200]
    assert readers.outcomes["c"] == DATA[200:300]
    assert readers.outcomes["far"] == DATA[900:1_000]


async def test_guest_does_not_wait_for_neighbours_that_are_less_urgent(clock, nursery):
    inner = slow()
    readers = Readers(coalesce.CoalesceSource(inner, nursery, in_flight=1), nursery)
    await readers.start("busy", 3_000, 100)
    with disk_io.as_stream(requests.Stream(requests.Klass.PEER, "h2")):
        for name, offset in (("before", 0), ("same", 100), ("after", 300)):
            await readers.start(name, offset, 100)
    with disk_io.as_stream(requests.Stream(requests.Klass.GUEST, "guest")):
        for name, offset in (("a", 100), ("b", 200)):
            await readers.start(name, offset, 100)
    await trio.sleep(5)
    assert inner.reads == [(3_000, 100), (100, 200), (0, 100), (300, 100)]
    assert readers.outcomes["same"] == readers.outcomes["a"] == DATA[100:200]


async def test_joined_read_has_at_most_max_bytes_but_a_long_one_is_sent(clock, nursery):
    inner = slow()
    source = coalesce.CoalesceSource(inner, nursery, in_flight=1, max_bytes=250)
    readers = Readers(source, nursery)
    await readers.start("busy", 3_000, 100)
    for offset in (0, 100, 200):
        await readers.start(offset, offset, 100)
    await readers.start("long", 1_000, 900)
    await trio.sleep(9)
    assert inner.reads == [(3_000, 100), (0, 200), (200, 100), (1_000, 900)]


async def test_blobs_are_not_mixed(clock, nursery):
    inner = slow()
    readers = Readers(coalesce.CoalesceSource(inner, nursery, in_flight=1), nursery)
    await readers.start("busy", 3_000, 100)
    await readers.start("image", 0, 100)
    await readers.start("map", 100, 100, OTHER)
    await trio.sleep(5)
    assert inner.reads == [(3_000, 100), (0, 100), (100, 100)]
    assert readers.outcomes["map"] == DATA[::-1][100:200]


async def test_piece_in_flight_is_waited_for(clock, nursery):
    inner = slow()
    readers = Readers(coalesce.CoalesceSource(inner, nursery), nursery)
    await readers.start("first", 0, 300)
    await readers.start("same", 0, 300)
    await readers.start("of another blob", 0, 300, OTHER)
    await trio.sleep(2)
    assert inner.reads == [(0, 300), (0, 300)]
    assert readers.outcomes["same"] == readers.outcomes["first"] == DATA[:300]
    assert readers.outcomes["of another blob"] == DATA[::-1][:300]


async def test_what_tasks_want_in_one_turn_of_the_event_loop_is_one_read(clock, nursery):
    inner = slow()
    source = coalesce.CoalesceSource(inner, nursery)
    async with trio.open_nursery() as readers:
        for number in (3, 1, 0, 2, 7):
            readers.start_soon(source.read, BLOB, 100 * number, 100)
    assert sorted(inner.reads) == [(0, 400), (700, 100)]


async def test_inner_reads_in_flight_are_bounded(clock, nursery):
    inner = slow()
    readers = Readers(coalesce.CoalesceSource(inner, nursery, in_flight=3), nursery)
    for number in range(12):
        await readers.start(number, number * 200, 100)
    assert inner.in_flight_now == 3
    await trio.sleep(9)
    assert inner.in_flight_most == 3
    assert len(readers.outcomes) == 12


def test_places_are_those_of_the_inner_source_unless_said(monkeypatch):
    inner = slow()
    monkeypatch.setattr(type(inner), "in_flight", 5)
    assert coalesce.CoalesceSource(inner, None).in_flight == 5
    assert coalesce.CoalesceSource(inner, None, in_flight=2).in_flight == 2


async def test_failure_reaches_all_who_were_joined_and_nobody_else(clock, nursery):
    inner = slow(fail=[2])
    readers = Readers(coalesce.CoalesceSource(inner, nursery, in_flight=1), nursery)
    for name, offset in [("busy", 3_000), ("a", 0), ("b", 100), ("far", 900)]:
        await readers.start(name, offset, 100)
    await trio.sleep(5)
    a, b = readers.outcomes["a"], readers.outcomes["b"]
    assert isinstance(a, errors.SourceUnreachable) and "read 2 fails" in str(a)
    assert (type(b), str(b)) == (type(a), str(a))
    assert a is not b
    assert readers.outcomes["far"] == DATA[900:1_000]


async def test_bug_of_the_inner_source_is_raised_where_it_was_asked(nursery):
    class Broken(faulty_source.MemorySource):
        async def read(self, blob, offset, length, content=None):
            raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError, match="a bug"):
        await coalesce.CoalesceSource(Broken({}), nursery).read(BLOB, 0, 1)


async def test_cancelled_waiter_does_not_cancel_the_others(clock, nursery):
    inner = slow()
    readers = Readers(coalesce.CoalesceSource(inner, nursery), nursery)
    await readers.start("first", 0, 100)
    await readers.start("second", 0, 100)
    readers.scopes["first"].cancel()
    await trio.sleep(2)
    assert inner.reads == [(0, 100)]
    assert readers.outcomes == {"second": DATA[:100]}


async def test_range_that_nobody_waits_for_any_more_is_not_started(clock, nursery):
    inner = slow()
    readers = Readers(coalesce.CoalesceSource(inner, nursery, in_flight=1), nursery)
    for name, offset in [("busy", 3_000), ("gone", 0), ("stays", 100)]:
        await readers.start(name, offset, 100)
    readers.scopes["gone"].cancel()
    await trio.sleep(5)
    assert inner.reads == [(3_000, 100), (100, 100)]


async def test_read_in_flight_that_nobody_waits_for_frees_its_place(clock, nursery):
    inner = slow()
    readers = Readers(coalesce.CoalesceSource(inner, nursery, in_flight=1), nursery)
    await readers.start("gone", 0, 100)
    await readers.start("next", 900, 100)
    started = trio.current_time()
    readers.scopes["gone"].cancel()
    await trio.testing.wait_all_tasks_blocked()
    assert inner.reads == [(0, 100), (900, 100)]
    await trio.sleep(1.5)
    assert readers.outcomes == {"next": DATA[900:1_000]}
    assert trio.current_time() - started < 2


async def test_range_is_read_again_after_the_abandoned_one(clock, nursery):
    inner = slow()
    source = coalesce.CoalesceSource(inner, nursery, in_flight=1)
    with trio.move_on_after(0.5):
        await source.read(BLOB, 0, 100)
    assert await source.read(BLOB, 0, 100) == DATA[:100]
    assert len(inner.reads) == 2


async def test_nursery_that_ends_tells_all_who_wait(clock, nursery):
    async with trio.open_nursery() as own:
        readers = Readers(coalesce.CoalesceSource(slow(), own, in_flight=1), nursery)
        await readers.start("in flight", 0, 100)
        await readers.start("waiting", 900, 100)
        own.cancel_scope.cancel()
    await trio.testing.wait_all_tasks_blocked()
    assert {type(outcome) for outcome in readers.outcomes.values()} == {errors.SourceUnreachable}
    assert "being closed" in str(readers.outcomes["waiting"])


async def test_inner_source_that_tells_nothing_is_named_for_it(clock, nursery):
    class Mute(piecewise.PiecewiseSource):
        async def read_pieces(self, blob, pieces, told):
            pass

    source = coalesce.CoalesceSource(Mute(DATA), nursery)
    with pytest.raises(errors.SourceUnreachable, match="it told nothing of it"):
        await source.read(BLOB, 0, 100)


async def test_closing_tells_all_who_wait_and_closes_the_inner_source(clock, nursery):
    inner = slow()
    source = coalesce.CoalesceSource(inner, nursery, in_flight=1)
    readers = Readers(source, nursery)
    await readers.start("in flight", 0, 100)
    await readers.start("waiting", 900, 100)
    await source.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert [type(outcome) for outcome in readers.outcomes.values()] == [
        errors.SourceUnreachable
    ] * 2
    assert inner.reads == [(0, 100)] and inner.is_closed


@pytest.mark.parametrize("seed", range(5))
async def test_random_readers_faults_and_cancellations_give_right_bytes_or_an_error(
    clock, nursery, seed
):
    rng = random.Random(seed)
    inner = slow(share=0.2, seed=seed)
    source = coalesce.CoalesceSource(inner, nursery, in_flight=2, max_bytes=500)
    done = []

    async def read(offset, length, patience_s):
        with trio.move_on_after(patience_s) as scope:
            try:
                assert await source.read(BLOB, offset, length) == DATA[offset : offset + length]
                done.append("right")
            except errors.SourceUnreachable:
                done.append("failed")
        if scope.cancelled_caught:
            done.append("gone")

    async with trio.open_nursery() as all_readers:
        for _ in range(200):
            await trio.sleep(rng.choice([0, 0, 0.1, 1]))
            patience_s = rng.choice([0.5, 3, 1_000])
            all_readers.start_soon(read, rng.randrange(39) * 100, 100, patience_s)
    assert len(done) == 200
    assert min(done.count(outcome) for outcome in ("right", "failed", "gone")) > 5
    assert inner.in_flight_most == 2
    assert len(inner.reads) < 200


GUEST, OTHER_GUEST = (requests.Stream(requests.Klass.GUEST, name) for name in ("a/8", "b/8"))
PEER = requests.Stream(requests.Klass.PEER, "h2")


async def test_guests_read_passes_those_of_peers_and_of_a_flood(clock, nursery):
    inner = slow()
    readers = Readers(coalesce.CoalesceSource(inner, nursery, in_flight=1), nursery)
    for number in range(30):
        with disk_io.as_stream(PEER):
            await readers.start(f"peer{number}", 2 * number, 1)
    for number in range(30):
        with disk_io.as_stream(GUEST):
            await readers.start(f"flood{number}", 1_000 + 2 * number, 1)
    with disk_io.as_stream(OTHER_GUEST):
        await readers.start("other", 3_000, 5)
    await trio.sleep(3.1)
    assert readers.outcomes["other"] == DATA[3_000:3_005]
    assert len(readers.outcomes) == 3


async def test_peers_that_hang_leave_a_place_for_a_guest(clock, nursery):
    inner = slow(delay_s=1000.0)
    readers = Readers(coalesce.CoalesceSource(inner, nursery, in_flight=8), nursery)
    for number in range(30):
        with disk_io.as_stream(PEER):
            await readers.start(number, 2 * number, 1)
    assert len(inner.reads) == 7
    with disk_io.as_stream(GUEST):
        await readers.start("guest", 3_000, 5)
    assert inner.reads[-1] == (3_000, 5)


async def test_read_that_a_guest_joins_is_as_urgent_as_the_guest(clock, nursery):
    inner = slow(delay_s=1000.0)
    source = coalesce.CoalesceSource(inner, nursery, in_flight=4)
    work = turns.Asker(PEER)
    readers = Readers(source, nursery)
    with disk_io.as_stream(PEER):
        for number in range(5):
            await readers.start(number, 2 * number, 1)
        with disk_io.as_work(work):
            nursery.start_soon(source.read, BLOB, 3_000, 5)
    await trio.testing.wait_all_tasks_blocked()
    assert len(inner.reads) == 3
    work.hurry(GUEST)
    await trio.testing.wait_all_tasks_blocked()
    assert inner.reads[3:] == [(3_000, 5)]


@pytest.mark.expect_log("20 reads wait for it already, most of them for peer:flood")
async def test_of_too_many_that_wait_the_newest_of_the_greediest_fail(
    clock, nursery, monkeypatch, caplog
):
    monkeypatch.setattr(coalesce, "WAITING_LIMIT", 20)
    source = coalesce.CoalesceSource(slow(), nursery, in_flight=1)
    readers = Readers(source, nursery)
    await readers.start("busy", 3_900, 10)
    with disk_io.as_stream(requests.Stream(requests.Klass.PEER, "flood")):
        for number in range(100):
            await readers.start(("flood", number), 30 * number, 10)
    with disk_io.as_stream(requests.Stream(requests.Klass.PEER, "modest")):
        for number in range(5):
            await readers.start(("modest", number), 30 * number + 15, 10)
    assert len(source._waiting) == len(source._queue) == 20
    failed = {name for name, outcome in readers.outcomes.items() if isinstance(outcome, Exception)}
    assert failed == {("flood", number) for number in range(15, 100)}
    assert isinstance(readers.outcomes["flood", 99], errors.SourceCrowded)
    assert len(caplog.records) == 1
    await trio.sleep(60)
    assert readers.outcomes["modest", 4] == DATA[135:145]
    assert readers.outcomes["flood", 14] == DATA[420:430]
    assert (source._waiting, len(source._queue)) == ({}, 0)


async def test_who_gives_up_or_is_closed_makes_room(clock, nursery, monkeypatch):
    monkeypatch.setattr(coalesce, "WAITING_LIMIT", 4)
    source = coalesce.CoalesceSource(slow(), nursery, in_flight=1)
    readers = Readers(source, nursery)
    await readers.start("busy", 3_900, 10)
    for name in range(4):
        await readers.start(name, 30 * name, 10)
    readers.scopes[0].cancel()
    await trio.testing.wait_all_tasks_blocked()
    await readers.start("last", 1_000, 10)
    assert "last" not in readers.outcomes
    assert len(source._queue) == 4
    await source.aclose()
    assert len(source._queue) == 0


# Many pieces at a time


def pieces(*numbers, length=100):
    return [base.Piece(number * length, length) for number in numbers]


class Asked:
    """One call for many pieces, and what it was told when."""

    def __init__(self, source, nursery, *numbers, blob=BLOB):
        self.told, self.told_s, self.scope = [], {}, trio.CancelScope()
        self.pieces, self.blob, self.source = pieces(*numbers), blob, source
        nursery.start_soon(self._ask)

    async def _ask(self):
        with self.scope:
            await self.source.read_pieces(self.blob, self.pieces, self.take)

    def take(self, answers):
        self.told += answers
        self.told_s.update({number: round(trio.current_time()) for number, _ in answers})

    @property
    def is_right(self):
        outcomes = dict(self.told)
        right = [DATA[piece.offset : piece.offset + piece.length] for piece in self.pieces]
        return len(self.told) == len(right) and [outcomes[n] for n in range(len(right))] == right


async def test_pieces_of_several_callers_are_one_read_and_each_is_told_of_its_own(clock, nursery):
    inner = piecewise.PiecewiseSource(DATA)
    source = coalesce.CoalesceSource(inner, nursery)
    calls = [Asked(source, nursery, *numbers) for numbers in ((4, 5), (2, 3), (3, 4, 9), (0, 1))]
    await trio.testing.wait_all_tasks_blocked()
    assert sorted(inner.asked) == [[0, 100, 200, 300, 400, 500], [900]]
    assert all(call.is_right for call in calls)


async def test_piece_is_given_on_before_those_behind_it_are_here(clock, nursery):
    inner = piecewise.PiecewiseSource(DATA, delay_s={200: 5.0})
    source = coalesce.CoalesceSource(inner, nursery)
    first, second = Asked(source, nursery, 0, 1, 2), Asked(source, nursery, 1, 3)
    await trio.sleep(6)
    assert (first.told_s, second.told_s) == ({0: 0, 1: 0, 2: 5}, {0: 0, 1: 5})
    assert len(inner.asked) == 1


async def test_piece_that_was_told_of_is_read_again_for_who_comes_later(clock, nursery):
    inner = piecewise.PiecewiseSource(DATA, delay_s={200: 5.0})
    source = coalesce.CoalesceSource(inner, nursery)
    Asked(source, nursery, 0, 1, 2)
    await trio.sleep(1)
    later = Asked(source, nursery, 1, 2)
    await trio.sleep(9)
    assert later.is_right
    assert inner.asked == [[0, 100, 200], [100]]


async def test_failure_of_one_piece_is_that_of_who_wants_it(clock, nursery):
    inner = piecewise.PiecewiseSource(DATA, fail={100: errors.ChunkInvalid})
    source = coalesce.CoalesceSource(inner, nursery)
    first, second = Asked(source, nursery, 0, 1), Asked(source, nursery, 2, 3)
    await trio.testing.wait_all_tasks_blocked()
    assert (len(inner.asked), second.is_right) == (1, True)
    outcomes = dict(first.told)
    assert (outcomes[0], type(outcomes[1])) == (DATA[:100], errors.ChunkInvalid)


async def test_many_pieces_become_several_reads_beside_each_other(clock, nursery):
    inner = slow()
    source = coalesce.CoalesceSource(inner, nursery, max_bytes=1_000)
    call = Asked(source, nursery, *range(35))
    await trio.sleep(1.1)
    assert inner.reads == [(0, 1_000), (1_000, 1_000), (2_000, 1_000), (3_000, 500)]
    assert (inner.in_flight_most, call.is_right) == (4, True)


@pytest.mark.expect_log("10 reads wait for it already, most of them for background:agent")
async def test_of_too_many_pieces_those_of_the_newest_call_fail_and_not_what_is_read(
    clock, nursery, monkeypatch
):
    monkeypatch.setattr(coalesce, "WAITING_LIMIT", 10)
    inner = slow()
    source = coalesce.CoalesceSource(inner, nursery, in_flight=1, max_bytes=400)
    first = Asked(source, nursery, *range(8))
    await trio.testing.wait_all_tasks_blocked()
    assert (inner.reads, len(source._queue), source._queue.total) == ([(0, 400)], 1, 4)
    second = Asked(source, nursery, *range(2, 9))  # two of them are in flight
    await trio.testing.wait_all_tasks_blocked()
    assert (source._queue.total, second.told) == (9, [])
    third = Asked(source, nursery, 3, 20, 21)
    await trio.sleep(9)
    assert [(n, type(outcome)) for n, outcome in third.told] == [
        (1, errors.SourceCrowded),
        (2, errors.SourceCrowded),
        (0, bytearray),
    ]
    assert first.is_right and second.is_right
    assert inner.reads == [(0, 400), (400, 400), (800, 100)]
    assert (source._waiting, source._wanted, source._queue.total) == ({}, {}, 0)


async def test_read_that_was_given_up_and_has_not_ended_is_joined_by_nobody(clock, nursery):
    class Stubborn(piecewise.PiecewiseSource):
        async def read_pieces(self, blob, pieces, told):
            with trio.CancelScope(shield=True):
                await super().read_pieces(blob, pieces, told)

    inner = Stubborn(DATA, delay_s={0: 5.0})
    source = coalesce.CoalesceSource(inner, nursery)
    first = Asked(source, nursery, 0, 1)
    await trio.sleep(1)
    first.scope.cancel()
    await trio.testing.wait_all_tasks_blocked()
    second = Asked(source, nursery, 0, 1)
    await trio.sleep(7)
    assert (first.told, second.is_right, second.told_s) == ([], True, {0: 6, 1: 6})
    assert (inner.asked, source._wanted) == ([[0, 100]] * 2, {})


async def test_who_gives_up_takes_only_what_nobody_else_wants(clock, nursery):
    inner = piecewise.PiecewiseSource(DATA, delay_s={0: 5.0, 1_000: 5.0})
    source = coalesce.CoalesceSource(inner, nursery, in_flight=1)
    first = Asked(source, nursery, 0, 1)
    second = Asked(source, nursery, 1, 2)
    await trio.sleep(1)
    waiting = Asked(source, nursery, 10, 11)
    await trio.sleep(1)
    first.scope.cancel()
    waiting.scope.cancel()
    await trio.sleep(6)
    assert (first.told, waiting.told, second.is_right) == ([], [], True)
    assert (len(inner.asked), inner.cancelled, source._waiting) == (1, 0, {})
    third = Asked(source, nursery, 10)
    await trio.sleep(1)
    third.scope.cancel()
    await trio.testing.wait_all_tasks_blocked()
    assert inner.cancelled == 1


async def test_source_that_tells_too_much_or_nothing_is_told_of_once(clock, nursery):
    class Careless(piecewise.PiecewiseSource):
        async def read_pieces(self, blob, pieces, told):
            told([(0, b"x" * 100), (0, b"y" * 100), (7, b"z")])

    call = Asked(coalesce.CoalesceSource(Careless(DATA), nursery), nursery, 0, 1)
    await trio.testing.wait_all_tasks_blocked()
    assert call.told[0] == (0, b"x" * 100)
    assert [number for number, _ in call.told] == [0, 1]
    assert isinstance(call.told[1][1], errors.SourceUnreachable)
