# SPDX-License-Identifier: Apache-2.0
import itertools
import random

import pytest
import trio

from acstor_agent.core.sources import attempt_timeout
from acstor_agent.core.sources import source_request
from acstor_agent.sources import base
from acstor_agent.sources import source_client
from acstor_agent.sources.wrappers import deadline_source
from acstor_common import errors
from acstor_common.model import ids
from tests.fakes import faulty_source
from tests.fakes import piecewise

BLOB = base.Blob(ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"), base.BlobKind.IMAGE)
DATA = random.Random(1).randbytes(4_000)
NEVER_S = 1e6
ALWAYS = range(1, 1_000)

pytestmark = pytest.mark.allow_log("Source memory does not answer")


class Flaky(faulty_source.FaultySource):
    """Records the times of its reads, and fails its first size request."""

    def __init__(self, **faults):
        super().__init__(faulty_source.MemorySource({BLOB: b"0123456789"}), **faults)
        self.asked_at = []
        self.sizes_asked = 0

    async def read(self, blob, offset, length, content=None):
        self.asked_at.append(trio.current_time())
        return await super().read(blob, offset, length, content)

    async def size_bytes(self, blob):
        self.sizes_asked += 1
        if self.sizes_asked == 1:
            raise errors.SourceUnreachable("the size", self.location)
        return await super().size_bytes(blob)


def retried(inner, **limits):
    return source_client.SourceClient([inner], **limits)


async def test_transient_failures_are_retried(autojump_clock):
    inner = Flaky(fail=[1, 2])
    assert await retried(inner, attempts=3).read(BLOB, 2, 3) == b"234"
    assert len(inner.reads) == 3


async def test_size_request_is_retried(autojump_clock):
    assert await retried(Flaky()).size_bytes(BLOB) == 10


async def test_last_error_is_raised_after_all_attempts(autojump_clock):
    inner = Flaky(share=1.0)
    with pytest.raises(errors.SourceUnreachable, match="read 4 fails"):
        await retried(inner, attempts=4).read(BLOB, 0, 1)
    assert len(inner.reads) == 4


@pytest.mark.parametrize("kind", [errors.ChunkMissing, errors.ChunkInvalid])
async def test_permanent_failure_is_not_retried(kind):
    inner = Flaky(fail=[1], error=kind)
    with pytest.raises(kind):
        await retried(inner).read(BLOB, 0, 1)
    assert len(inner.reads) == 1


async def test_pauses_double_up_to_the_longest_with_jitter(autojump_clock):
    inner = Flaky(share=1.0)
    with pytest.raises(errors.SourceUnreachable):
        await retried(inner, attempts=7).read(BLOB, 0, 1)
    pauses = [after - before for before, after in itertools.pairwise(inner.asked_at)]
    shares = [
        pause / full for pause, full in zip(pauses, [0.1, 0.2, 0.4, 0.8, 1.6, 2.0], strict=True)
    ]
    assert all(0.5 <= share <= 1 + 1e-6 for share in shares)
    assert len(set(shares)) == 6


async def test_no_retry_is_made_beyond_the_deadline(autojump_clock):
    inner = Flaky(share=1.0)
    started = trio.current_time()
    with trio.fail_after(0.5), pytest.raises(errors.SourceUnreachable):
        await retried(inner, attempts=9, jitter=lambda: 1.0).read(BLOB, 0, 1)
    assert trio.current_time() - started == pytest.approx(0.1 + 0.2)
    assert len(inner.reads) == 3


async def test_only_failed_pieces_are_retried(autojump_clock):
    lost, gone = errors.SourceUnreachable, errors.ChunkMissing
    inner = piecewise.PiecewiseSource(b"0123456789", fail={2: lost, 4: gone, 8: lost})
    reported = []

    async def mend():
        await trio.sleep(0.01)
        del inner.fail[8]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(mend)
        pieces = [base.BlobPiece(at, 2) for at in range(0, 10, 2)]
        await retried(inner, attempts=3).read_pieces(
            base.PieceRequest(BLOB, pieces, reported.extend)
        )
    assert inner.asked == [[0, 2, 4, 6, 8], [2, 8], [2]]
    outcomes = dict(reported)
    assert [outcomes[n] for n in (0, 3, 4)] == [b"01", b"67", b"89"]
    assert (type(outcomes[1]), type(outcomes[2])) == (lost, gone)
    assert len(reported) == 5


async def test_pieces_are_passed_on_before_the_others_are_retried(autojump_clock):
    inner = piecewise.PiecewiseSource(b"0123456789", fail={0: errors.SourceUnreachable})
    told_s = {}
    await retried(inner).read_pieces(
        base.PieceRequest(
            BLOB,
            [base.BlobPiece(0, 2), base.BlobPiece(2, 2)],
            lambda answers: told_s.update({n: trio.current_time() for n, _ in answers}),
        )
    )
    assert told_s[1] == 0 < told_s[0]


async def test_pieces_are_not_retried_shortly_before_the_deadline(autojump_clock):
    inner = piecewise.PiecewiseSource(b"0123456789", fail={0: errors.SourceUnreachable})
    reported = []
    with trio.fail_after(0.02):
        await retried(inner).read_pieces(
            base.PieceRequest(BLOB, [base.BlobPiece(0, 2), base.BlobPiece(2, 2)], reported.extend)
        )
    assert [number for number, _ in reported] == [1, 0]
    assert inner.asked == [[0, 2]]


# Attempts


class Silent(faulty_source.MemorySource):
    """A source that never answers."""

    async def size_bytes(self, blob):
        await trio.sleep(NEVER_S)

    async def find_blob(self, blob):
        await trio.sleep(NEVER_S)

    async def read(self, blob, offset, length, content=None):
        await trio.sleep(NEVER_S)

    async def aclose(self):
        await trio.sleep(NEVER_S)


def attempts(inner, attempts=1):
    return source_client.SourceClient(
        [deadline_source.DeadlineSource(inner, 30.0)], attempts=attempts
    )


def memory(**faults):
    return faulty_source.FaultySource(faulty_source.MemorySource({BLOB: DATA}), **faults)


@pytest.mark.parametrize(
    ("ask", "what"),
    [
        (lambda source: source.size_bytes(BLOB), "the size of"),
        (lambda source: source.find_blob(BLOB), "the state of"),
        (lambda source: source.read(BLOB, 0, 10), "bytes 0-9"),
    ],
)
async def test_unanswered_request_times_out(autojump_clock, ask, what):
    source = attempts(Silent({}))
    with pytest.raises(errors.SourceUnreachable, match=f"{what}.*no answer within 30 s"):
        await ask(source)
    assert 30 <= trio.current_time() < 31
    with pytest.raises(errors.SourceUnreachable, match="no answer within 60 s"):
        await ask(source)
    assert source.list_statuses()[0].health.missed_attempts == 2


async def test_slow_link_causes_at_most_one_timeout(autojump_clock):
    source = attempts(memory(delay=ALWAYS, delay_s=43.0))
    with pytest.raises(errors.SourceUnreachable):
        await source.read(BLOB, 0, 10)
    for _ in range(40):
        assert await source.read(BLOB, 0, 10) == DATA[:10]


async def test_failure_before_the_timeout_is_no_missed_attempt(autojump_clock):
    source = attempts(memory(fail=[1], delay=[1], delay_s=20.0))
    with pytest.raises(errors.SourceUnreachable, match="by order"):
        await source.read(BLOB, 0, 10)
    assert source.list_statuses()[0].health.missed_attempts == 0


async def test_cancelled_read_is_no_missed_attempt(autojump_clock):
    source = attempts(Silent({}))
    with trio.move_on_after(5) as scope:
        await source.read(BLOB, 0, 10)
    assert scope.cancelled_caught
    assert source.list_statuses()[0].health.missed_attempts == 0


async def test_timed_out_attempt_is_retried(autojump_clock):
    source = attempts(memory(delay=[1, 2], delay_s=NEVER_S), 3)
    assert await source.read(BLOB, 0, 10) == DATA[:10]
    assert 90 <= trio.current_time() < 92


async def test_attempts_end_without_a_deadline_of_the_caller(autojump_clock):
    source = attempts(Silent({}), 3)
    for _ in range(3):
        with pytest.raises(errors.SourceUnreachable):
            await source.read(BLOB, 0, 10)
    assert trio.current_time() < 3 * 3 * (attempt_timeout.MOST_S + source_request.RETRY_LONGEST_S)


async def test_close_does_not_wait_for_a_hanging_source(autojump_clock):
    await attempts(Silent({})).aclose()
    assert trio.current_time() < 5


async def test_pieces_before_the_timeout_are_kept_and_the_rest_is_unreachable(autojump_clock):
    inner = piecewise.PiecewiseSource(DATA, delay_s={10: 20.0, 20: 20.0})
    told_s = {}
    outcomes = {}

    def note(answers):
        outcomes.update(answers)
        told_s.update({number: round(trio.current_time()) for number, _ in answers})

    source = attempts(inner)
    await source.read_pieces(
        base.PieceRequest(BLOB, [base.BlobPiece(at, 10) for at in (0, 10, 20, 30)], note)
    )
    assert told_s == {0: 0, 1: 20, 2: 30, 3: 30}
    assert (outcomes[0], outcomes[1]) == (DATA[:10], DATA[10:20])
    assert {type(outcomes[number]) for number in (2, 3)} == {errors.SourceUnreachable}
    assert source.list_statuses()[0].health.missed_attempts == 1
    assert inner.cancelled == 1


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_retried_pieces_keep_their_numbers(autojump_clock, order):
    """A qcow2 image reports its failures in the order of its file."""

    class Mixed(Flaky):
        asked = 0

        async def read_pieces(self, request):
            self.asked += 1
            for at in order:
                one = request.pieces[at]
                error = errors.SourceUnreachable("a piece", self.location, "a reset")
                data = DATA[one.offset : one.offset + one.length]
                request.report([(at, error if self.asked == 1 else data)])

    found = {}
    pieces = [base.BlobPiece(at * 100, 100, None) for at in range(3)]
    await retried(Mixed()).read_pieces(
        base.PieceRequest(BLOB, pieces, lambda some: found.update(some))
    )
    assert found == {at: DATA[at * 100 : at * 100 + 100] for at in range(3)}


async def test_exception_in_the_report_callback_is_raised():
    def reported(some):
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        await retried(Flaky()).read_pieces(
            base.PieceRequest(BLOB, [base.BlobPiece(0, 3, None)], reported)
        )


async def test_error_raised_by_a_source_applies_to_all_its_pieces():
    class Raising(Flaky):
        async def read_pieces(self, request):
            raise errors.ChunkMissing("a piece", self.location, "by order")

    both = source_client.SourceClient([Raising(), Flaky()])
    assert await both.read(BLOB, 2, 3) == b"234"
