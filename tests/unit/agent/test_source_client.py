# SPDX-License-Identifier: Apache-2.0
import pytest
import trio

from acstor_agent.core.sources import failover
from acstor_agent.core.sources import source_request
from acstor_agent.sources import base
from acstor_agent.sources import source_client
from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.model import ids
from tests.fakes import faulty_source
from tests.fakes import piecewise

BLOB = base.Blob(ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"), base.BlobKind.IMAGE)
HAVING = {BLOB: b"0123456789"}
SILENT = pytest.mark.expect_log("first does not answer")


class Place(faulty_source.FaultySource):
    """A faulty source with a name."""

    def __init__(self, name, blobs=HAVING, **faults):
        super().__init__(faulty_source.MemorySource(blobs), **faults)
        self.name = name

    @property
    def location(self):
        return self.name


def once(sources):
    """Return a client that tries each source once, whatever its fault."""
    return source_client.SourceClient(sources, attempts=1)


async def test_only_the_preferred_source_is_read():
    first, second = Place("first"), Place("second")
    assert await once([first, second]).read(BLOB, 2, 3) == b"234"
    assert (len(first.reads), len(second.reads)) == (1, 0)


@pytest.mark.allow_log("first does not answer")
@pytest.mark.parametrize(
    "kind", [errors.SourceUnreachable, errors.ChunkMissing, errors.ChunkInvalid]
)
async def test_each_kind_of_failure_falls_back_to_the_next_source(kind):
    both = once([Place("first", share=1.0, error=kind), Place("second")])
    assert await both.read(BLOB, 2, 3) == b"234"


async def test_size_comes_from_the_first_that_has_the_blob():
    both = once([Place("first", {}), Place("second")])
    assert await both.size_bytes(BLOB) == 10


async def test_hash_comes_from_the_first_that_knows_it(monkeypatch):
    first, second = Place("first"), Place("second")
    both = once([first, second])
    assert both.os_hash(BLOB) == chunk_map.UNKNOWN_OS_HASH
    known = chunk_map.OsHash("sha256", bytes(32))
    monkeypatch.setattr(second, "os_hash", lambda _blob: known)
    assert both.os_hash(BLOB) == known


@SILENT
async def test_source_that_is_down_is_tried_last_for_a_while(autojump_clock):
    first, second = Place("first", fail=[1]), Place("second")
    both = once([first, second])
    await both.read(BLOB, 0, 1)
    await trio.sleep(4.9)
    await both.read(BLOB, 0, 1)
    assert (len(first.reads), len(second.reads)) == (1, 2)
    await trio.sleep(0.2)
    await both.read(BLOB, 0, 1)
    assert (len(first.reads), len(second.reads)) == (2, 2)


@SILENT
async def test_source_that_is_down_is_still_tried_for_blobs_only_it_has(autojump_clock):
    both = once([Place("first", fail=[1]), Place("second", {})])
    with pytest.raises(errors.SourceUnreachable):
        await both.read(BLOB, 0, 1)
    assert await both.read(BLOB, 0, 1) == b"0"


async def test_overloaded_source_is_skipped_but_not_marked_down():
    first, second = Place("first", fail=[1], error=errors.SourceOverloaded), Place("second")
    both = once([first, second])
    assert await both.read(BLOB, 2, 3) == await both.read(BLOB, 2, 3) == b"234"
    assert (len(first.reads), len(second.reads)) == (2, 1)


async def test_missing_chunk_does_not_mark_a_source_down():
    first, second = Place("first", fail=[1], error=errors.ChunkMissing), Place("second")
    both = once([first, second])
    await both.read(BLOB, 0, 1)
    await both.read(BLOB, 0, 1)
    assert len(first.reads) == 2


@SILENT
async def test_outage_is_logged_once(autojump_clock, watched_log):
    both = once([Place("first", share=1.0)])
    for _ in range(3):
        with pytest.raises(errors.SourceUnreachable):
            await both.read(BLOB, 0, 1)
        await trio.sleep(2)
    assert len(watched_log.messages) == 1


def test_single_failure_is_raised_unchanged():
    failure = errors.ChunkMissing("a", "b", "c")
    assert source_request.most_useful([failure]) is failure


@pytest.mark.parametrize(
    ("kinds", "kind"),
    [
        ([errors.ChunkMissing, errors.SourceUnreachable], errors.SourceUnreachable),
        ([errors.ChunkInvalid, errors.SourceUnreachable], errors.SourceUnreachable),
        ([errors.ChunkMissing, errors.ChunkInvalid], errors.ChunkInvalid),
        ([errors.ChunkMissing, errors.ChunkRefused], errors.ChunkRefused),
        ([errors.ChunkRefused, errors.ChunkInvalid], errors.ChunkInvalid),
        ([errors.ChunkMissing, errors.ChunkMissing], errors.ChunkMissing),
    ],
)
def test_combined_error_is_the_most_recoverable_and_has_all_reasons(kinds, kind):
    failures = [cls("the chunk", f"place {n}", f"reason {n}") for n, cls in enumerate(kinds)]
    error = source_request.most_useful(failures)
    assert type(error) is kind
    assert "the chunk" in str(error)
    assert "place 0: reason 0; place 1: reason 1" in str(error)


async def test_all_sources_are_closed_and_named():
    places = [Place("first"), Place("second")]
    both = once(places)
    assert both.location == "first, second"
    await both.aclose()
    assert all(place.is_closed for place in places)


# A source that hangs

NEVER_S = 1e6
ALWAYS = range(1, 10_000)


def hung(name="first", reads=ALWAYS):
    return Place(name, delay=reads, delay_s=NEVER_S)


@SILENT
async def test_hung_source_delays_a_read_by_less_than_three_seconds(autojump_clock):
    both = once([hung(), Place("second")])
    assert await both.read(BLOB, 2, 3) == b"234"
    assert trio.current_time() < 3
    issue = both.list_statuses()[0].issue
    assert "no answer for 2.0 s, while second answered" in issue.why
    assert both.list_statuses()[1].issue is None


@SILENT
async def test_readers_after_the_first_do_not_wait_for_a_hung_source(autojump_clock):
    first = hung()
    both = once([first, Place("second")])
    await both.read(BLOB, 2, 3)
    began_s = trio.current_time()
    for _ in range(100):
        assert await both.read(BLOB, 2, 3) == b"234"
    assert trio.current_time() == began_s
    assert first.in_flight_now == 0


@SILENT
async def test_all_reads_of_a_hung_source_continue_once_it_is_marked_down(autojump_clock):
    both = once([hung(), Place("second")])
    async with trio.open_nursery() as nursery:
        for _ in range(200):
            nursery.start_soon(both.read, BLOB, 2, 3)
    assert trio.current_time() < 3
    assert both.failover.hedge.hedges <= 4


@SILENT
async def test_hung_source_is_detected_with_no_hedges_left(autojump_clock):
    second = Place("second")
    both = once([hung(), second])
    while both.failover.hedge.may_hedge():
        pass
    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(both.read, BLOB, 2, 3)
        await trio.sleep(5.01)
        assert len(second.reads) == 1  # one of all waiting reads goes ahead
    assert trio.current_time() < 6
    assert not any(place.is_hedged for place in both.failover.sources)


@SILENT
async def test_hung_source_is_retried_with_backoff_and_used_once_it_answers(autojump_clock):
    first, second = hung(reads=range(1, 5)), Place("second")
    both = once([first, second])
    waits = []
    while len(first.reads) < 5:
        began_s = trio.current_time()
        assert await both.read(BLOB, 2, 3) == b"234"
        waits.append(trio.current_time() - began_s)
        await trio.sleep(0.5)
    assert trio.current_time() > 5 + 10 + 20 + 40
    assert sum(wait > 0 for wait in waits) == 4
    assert max(waits) < 3
    assert both.list_statuses()[0].issue is None
    asked = len(second.reads)
    await both.read(BLOB, 2, 3)
    assert len(second.reads) == asked


async def test_slow_source_that_beats_its_hedge_is_not_marked_down(autojump_clock):
    first = Place("first", delay=[1], delay_s=3.0)
    second = Place("second", delay=[1], delay_s=NEVER_S)
    both = once([first, second])
    assert await both.read(BLOB, 2, 3) == b"234"
    assert trio.current_time() == pytest.approx(3.0, abs=0.1)
    assert (len(second.reads), second.in_flight_now) == (1, 0)
    assert both.list_statuses()[0].issue is None


@pytest.mark.allow_log("does not answer")
async def test_hedges_do_not_double_the_load_when_all_sources_are_slow(autojump_clock):
    first = Place("first", delay=ALWAYS, delay_s=43.0)
    second = Place("second", delay=ALWAYS, delay_s=43.0)
    both = once([first, second])
    for _ in range(10):
        async with trio.open_nursery() as nursery:
            for _ in range(40):
                nursery.start_soon(both.read, BLOB, 2, 3)
    assert len(first.reads) + len(second.reads) <= 400 * 1.05 + 5 + 10


async def test_source_that_answers_other_reads_is_not_marked_down(autojump_clock):
    first = Place("first", delay=[1], delay_s=NEVER_S)
    both = once([first, Place("second")])

    async def read_often():
        for _ in range(100):
            await trio.sleep(0.1)
            await both.read(BLOB, 0, 1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(both.read, BLOB, 2, 3)
        nursery.start_soon(read_often)
        await trio.sleep(9)
        assert both.list_statuses()[0].issue is None
        assert len(first.reads) > 80
        nursery.cancel_scope.cancel()


@pytest.mark.allow_log("does not answer")
async def test_read_waits_for_a_hung_source_that_alone_has_the_blob(autojump_clock):
    first = Place("first", delay=[1], delay_s=30.0)
    both = once([first, Place("second", {})])
    assert await both.read(BLOB, 2, 3) == b"234"
    assert trio.current_time() == pytest.approx(30.0, abs=0.1)


async def test_reads_of_hung_sources_are_cancelled_with_the_caller(autojump_clock):
    places = [hung("first"), hung("second"), hung("third")]
    all_three = once(places)
    with trio.move_on_after(60) as scope:
        await all_three.read(BLOB, 2, 3)
    assert scope.cancelled_caught
    assert [place.in_flight_now for place in places] == [0, 0, 0]
    assert [len(place.reads) for place in places] == [1, 1, 1]


async def test_exception_of_a_source_is_raised_to_the_caller(autojump_clock):
    class Broken(faulty_source.MemorySource):
        async def read(self, blob, offset, length, content=None):
            raise ZeroDivisionError("a bug")

    for sources in ([Broken({})], [Broken({}), Place("second")], [hung(), Broken({})]):
        with pytest.raises(ZeroDivisionError, match="a bug"):
            await once(sources).read(BLOB, 2, 3)


@SILENT
async def test_size_is_read_from_the_next_source_when_the_first_hangs(autojump_clock):
    class Silent(Place):
        async def size_bytes(self, blob):
            await trio.sleep(NEVER_S)

    both = once([Silent("first"), Place("second")])
    assert await both.size_bytes(BLOB) == 10
    assert trio.current_time() < 3


@SILENT
async def test_overload_errors_of_a_hung_source_do_not_count_as_answers(autojump_clock):
    class Crowded(Place):
        async def read(self, blob, offset, length, content=None):
            if self.in_flight_now >= 2:
                raise errors.SourceOverloaded(blob.file_name, self.location, "two wait already")
            return await super().read(blob, offset, length)

    both = once([Crowded("first", delay=ALWAYS, delay_s=NEVER_S), Place("2nd")])
    async with trio.open_nursery() as nursery:
        for _ in range(200):
            nursery.start_soon(both.read, BLOB, 2, 3)
            await trio.sleep(0.1)
        assert both.list_statuses()[0].issue is not None


# Many pieces at a time

DATA = bytes(range(100))
PIECES = [base.BlobPiece(at, 10) for at in range(0, 50, 10)]


def part(at):
    return DATA[at : at + 10]


async def ask(both):
    """Return the outcomes of PIECES, each reported once."""
    reported = []
    await both.read_pieces(base.PieceRequest(BLOB, PIECES, reported.extend))
    assert sorted(number for number, _ in reported) == [0, 1, 2, 3, 4]
    return [dict(reported)[number] for number in range(5)]


@pytest.mark.allow_log("first does not answer")
@pytest.mark.parametrize(
    "kind", [errors.SourceUnreachable, errors.ChunkMissing, errors.ChunkInvalid]
)
async def test_next_source_is_read_only_for_pieces_that_the_first_lacks(kind):
    first = piecewise.PiecewiseSource(DATA, "first", fail={10: kind, 30: kind})
    second = piecewise.PiecewiseSource(DATA, "second")
    both = once([first, second])
    assert await ask(both) == [part(at) for at in range(0, 50, 10)]
    assert (first.asked, second.asked) == ([[0, 10, 20, 30, 40]], [[10, 30]])
    is_down = both.list_statuses()[0].issue is not None
    assert is_down is (kind is errors.SourceUnreachable)


@pytest.mark.allow_log("does not answer")
async def test_each_piece_fails_with_the_reasons_of_its_own():
    first = piecewise.PiecewiseSource(DATA, "1st", fail={10: errors.ChunkMissing})
    second = piecewise.PiecewiseSource(DATA, "2nd", fail={10: errors.ChunkInvalid})
    first.fail[30], second.fail[30] = errors.ChunkMissing, errors.SourceUnreachable
    outcomes = await ask(once([first, second]))
    assert [outcomes[n] for n in (0, 2, 4)] == [part(0), part(20), part(40)]
    assert [type(outcomes[n]) for n in (1, 3)] == [errors.ChunkInvalid, errors.SourceUnreachable]
    assert "bytes 10-19" in str(outcomes[1]) and "1st: by order; 2nd: by order" in str(outcomes[1])


@SILENT
async def test_source_that_stalls_midway_is_hedged_for_the_rest(autojump_clock):
    first = piecewise.PiecewiseSource(DATA, "first", delay_s={20: NEVER_S})
    second = piecewise.PiecewiseSource(DATA, "second")
    both = once([first, second])
    assert await ask(both) == [part(at) for at in range(0, 50, 10)]
    assert trio.current_time() < 3
    assert second.asked == [[20, 30, 40]]
    assert first.cancelled == 1


async def test_source_that_keeps_reporting_pieces_is_not_hedged(autojump_clock):
    first = piecewise.PiecewiseSource(DATA, "first", delay_s=dict.fromkeys(range(0, 50, 10), 1.9))
    second = piecewise.PiecewiseSource(DATA, "second")
    await ask(once([first, second]))
    assert second.asked == []
    assert trio.current_time() > 9


async def test_source_that_keeps_reporting_after_failures_is_not_hedged(autojump_clock):
    """This holds for any duration and any number of missing pieces."""
    missing = dict.fromkeys([0, 10], errors.ChunkMissing)
    first = piecewise.PiecewiseSource(
        DATA, "first", fail=missing, delay_s=dict.fromkeys(range(0, 50, 10), 1.9)
    )
    second = piecewise.PiecewiseSource(DATA, "second")
    both = once([first, second])
    assert await ask(both) == [part(at) for at in range(0, 50, 10)]
    assert second.asked == [[0, 10]]  # after the first source, not in parallel
    assert both.list_statuses()[0].issue is None


@pytest.mark.allow_log("does not answer")
async def test_piece_given_by_both_sources_is_reported_once_and_credits_both(autojump_clock):
    first = piecewise.PiecewiseSource(DATA, "first", delay_s={0: 2.5, 20: 1.0})
    first.fail[40] = errors.SourceUnreachable
    second = piecewise.PiecewiseSource(DATA, "second", delay_s={10: 0.7, 30: 5.0})
    second.fail[0] = errors.SourceUnreachable
    both = once([first, second])
    watch: list[float] = []
    note, place = both.failover.note_answer, both.failover.sources[1]

    def note_answer(answered, now):
        if answered is place:
            watch.append(now)
        note(answered, now)

    both.failover.note_answer = note_answer
    assert await ask(both) == [part(at) for at in range(0, 50, 10)]
    assert trio.current_time() == pytest.approx(7.7)
    assert [state.issue.why for state in both.list_statuses()] == [
        "by order"
    ] * 2  # a piece of each
    assert watch == pytest.approx([2.7, 2.7, 7.7, 7.7])  # both gave the first one


class Lingering(piecewise.PiecewiseSource):
    """Reports every piece, and does not return."""

    async def read_pieces(self, request):
        await super().read_pieces(request)
        await trio.sleep(NEVER_S)


@SILENT
async def test_read_ends_once_both_sources_together_gave_all_pieces(autojump_clock):
    first = piecewise.PiecewiseSource(DATA, "first", delay_s={30: NEVER_S})
    both = once([first, Lingering(DATA, "second")])
    for seconds in (2, 0):  # the silent source is detected as usual
        began_s = trio.current_time()
        assert await ask(both) == [part(at) for at in range(0, 50, 10)]
        assert trio.current_time() == pytest.approx(began_s + seconds)
    assert "while second answered" in both.list_statuses()[0].issue.why
    assert both.list_statuses()[1].issue is None


async def test_hedge_with_no_pieces_left_does_not_count_as_an_answer(autojump_clock):
    """The source that did the work is not marked down."""
    for _ in range(40):  # the order of both in one turn of the loop is random
        first = Lingering(DATA, "first", delay_s={0: failover.SILENT_FIRST_S})
        second = piecewise.PiecewiseSource(DATA, "second")
        both = once([first, second])
        reported = []
        await both.read_pieces(base.PieceRequest(BLOB, PIECES[:1], reported.extend))
        assert reported == [(0, part(0))]
        assert both.list_statuses()[0].issue is None and [] not in second.asked


@SILENT
async def test_source_that_reports_nothing_fails_the_read():
    class Mute(piecewise.PiecewiseSource):
        async def read_pieces(self, request):
            pass

    outcomes = await ask(once([Mute(DATA, "first")]))
    assert {type(outcome) for outcome in outcomes} == {errors.SourceUnreachable}
