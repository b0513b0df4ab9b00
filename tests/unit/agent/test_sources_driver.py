# SPDX-License-Identifier: Apache-2.0
import threading

import pytest
import trio

from acstor_agent.core.disk_scheduling import request
from acstor_agent.sources import base
from acstor_agent.sources import chunk_verification
from acstor_agent.sources import driver
from acstor_agent.sources.wrappers import deadline_source
from acstor_common import errors
from acstor_common.model import ids
from tests.fakes import faulty_source

BLOB = base.Blob(ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"), base.BlobKind.IMAGE)
CHUNK = b"a chunk"
CONTENT = ids.Content(ids.cid_of(CHUNK))
KEY = ids.ScopeKey(b"k" * 32)
CHUNKS = [bytes([number]) * 10 for number in range(4)]


def source(**faults):
    memory = faulty_source.MemorySource({BLOB: CHUNK})
    return faulty_source.FaultySource(memory, **faults)


def test_matching_chunk_passes_also_as_memoryview():
    chunk_verification.check_chunk(memoryview(CHUNK), CONTENT, "chunk 5", "peer h2")


def test_error_of_a_wrong_chunk_names_chunk_source_and_both_cids():
    with pytest.raises(errors.ChunkInvalid) as caught:
        chunk_verification.check_chunk(b"other", CONTENT, "chunk 5", "peer h2")
    text = str(caught.value)
    assert "chunk 5" in text and "peer h2" in text
    assert CONTENT.cid.hex() in text and ids.cid_of(b"other").hex() in text


async def test_corrupt_read_with_content_is_invalid():
    outcomes = []
    await source(corrupt=[1]).read_pieces(
        base.PieceRequest(BLOB, [base.BlobPiece(0, 7, CONTENT)], outcomes.extend)
    )
    [(_, outcome)] = outcomes
    with pytest.raises(errors.ChunkInvalid, match=rf"{BLOB.file_name} bytes 0-6 .* memory"):
        raise outcome


async def test_short_read_fails_as_unreachable():
    outcomes = []
    await source(truncate=[1]).read_pieces(
        base.PieceRequest(BLOB, [base.BlobPiece(0, 7, CONTENT)], outcomes.extend)
    )
    [(number, failure)] = outcomes
    assert number == 0
    assert type(failure) is errors.SourceUnreachable and "fewer bytes" in str(failure)


async def test_read_without_content_is_not_verified():
    assert await source(corrupt=[1]).read(BLOB, 0, len(CHUNK)) != CHUNK


@pytest.mark.parametrize(
    ("keys", "of", "why"),
    [
        ((KEY,), CHUNK, None),
        ((KEY,), b"a chunx", "the CID is"),
        ((), CHUNK, "the key of its CID .* is not known"),
    ],
)
def test_keyed_chunk_is_verified_with_its_own_keys(keys, of, why):
    keyed = ids.Content(ids.cid_of(CHUNK, KEY), keys)
    reported = []
    run = driver.BlobRun(BLOB, [base.BlobPiece(0, 7, keyed)], "memory", reported.extend)
    run.fill_first(of)
    [(_, outcome)] = reported
    if why is None:
        assert outcome == CHUNK
    else:
        with pytest.raises(errors.ChunkInvalid, match=why):
            raise outcome


def a_run(reported, wrong=()):
    pieces = [
        base.BlobPiece(
            5 + 10 * number, 10, ids.Content(ids.cid_of(b"x" if number in wrong else chunk))
        )
        for number, chunk in enumerate(CHUNKS)
    ]
    run = driver.BlobRun(BLOB, pieces, "memory", reported.append)
    for buffer, chunk in zip(run.buffers, CHUNKS, strict=True):
        buffer[:] = chunk
    return run


def test_pieces_are_reported_as_soon_as_they_are_complete():
    reported = []
    run = a_run(reported)
    for count_bytes in (0, 9, 10, 29, 30, 30, 40):
        run.pieces_filled(count_bytes)
    assert reported == [[(0, CHUNKS[0])], [(1, CHUNKS[1])], [(2, CHUNKS[2])], [(3, CHUNKS[3])]]
    assert run.is_over


def test_failure_is_reported_only_for_the_remaining_pieces():
    reported = []
    run = a_run(reported)
    run.pieces_filled(25)
    failure = errors.SourceUnreachable("it", "there", "because")
    run.pieces_failed(failure)
    run.pieces_failed(failure)
    assert reported == [[(0, CHUNKS[0]), (1, CHUNKS[1])], [(2, failure), (3, failure)]]


@pytest.mark.parametrize("checked_before_bytes", [0, 15, 40])
def test_each_piece_is_verified_with_or_without_the_driver(checked_before_bytes):
    reported = []
    run = a_run(reported, wrong={1, 3})
    thread = threading.Thread(target=run.check_pieces, args=(checked_before_bytes,))
    thread.start()
    thread.join()
    assert reported == []
    run.pieces_filled(40)
    [answers] = reported
    assert [type(outcome) for _, outcome in answers] == [
        bytearray,
        errors.ChunkInvalid,
        bytearray,
        errors.ChunkInvalid,
    ]


async def test_driver_that_reports_nothing_fails_all_pieces():
    class Idle(driver.Driver):
        location = "nowhere"
        from_conf = size_bytes = aclose = None

        async def fill_run(self, run):
            pass

    outcomes = []
    await Idle().read_pieces(
        base.PieceRequest(BLOB, [base.BlobPiece(0, 7), base.BlobPiece(9, 1)], outcomes.extend)
    )
    assert [(number, type(outcome)) for number, outcome in outcomes] == [
        (0, errors.SourceUnreachable),
        (1, errors.SourceUnreachable),
    ]


async def test_ranges_of_one_call_are_read_concurrently_and_fail_separately(autojump_clock):
    memory = faulty_source.MemorySource({BLOB: bytes(range(100))})
    inner = faulty_source.FaultySource(memory, delay=range(1, 99), fail=[3])
    reported = []
    pieces = [base.BlobPiece(at, 3) for at in range(0, 50, 5)]
    await inner.read_pieces(base.PieceRequest(BLOB, pieces, reported.extend))
    assert inner.in_flight_most == driver.RUNS_AT_A_TIME == 4
    outcomes = dict(reported)
    assert len(reported) == len(outcomes) == len(pieces)
    failed = [number for number, outcome in reported if isinstance(outcome, Exception)]
    assert len(failed) == 1
    for number, piece in enumerate(pieces):
        if number not in failed:
            assert outcomes[number] == bytes(range(piece.offset, piece.offset + 3))


async def test_ranges_not_yet_started_are_not_read_after_a_cancel(autojump_clock):
    memory = faulty_source.MemorySource({BLOB: bytes(100)})
    inner = faulty_source.FaultySource(memory, delay=range(1, 99), delay_s=10.0)
    reported = []
    with trio.move_on_after(5):
        pieces = [base.BlobPiece(at, 3) for at in range(0, 50, 5)]
        await inner.read_pieces(base.PieceRequest(BLOB, pieces, reported.extend))
    assert reported == [] and len(inner.reads) == driver.RUNS_AT_A_TIME and not inner.in_flight_now


FILL = base.Requester(request.Klass.FILL, "an image")
MANY = [base.BlobPiece(10 * number, 10) for number in range(16)]


class Slow(driver.Driver):
    """Fills a piece each 33 ms, ``count`` of them; it then fails or hangs."""

    location = "here"
    from_conf = size_bytes = aclose = None

    def __init__(self, count, hangs=False):
        self._count, self._hangs = count, hangs

    async def fill_run(self, run):
        for number in range(1, self._count + 1):
            await trio.sleep(0.033)
            run.pieces_filled(10 * number)
        if self._hangs:
            await trio.sleep_forever()
        if not run.is_over:
            raise errors.SourceUnreachable("it", "there", "because")


@pytest.mark.parametrize(
    ("klass", "counts"),
    [(request.Klass.FILL, [3, 3, 3, 3, 3, 1]), (request.Klass.PREFETCH, 16 * [1])],
)
async def test_pieces_of_a_fill_are_reported_in_batches(autojump_clock, klass, counts):
    reported = []
    requester = base.Requester(klass, "an image")
    await Slow(16).read_pieces(base.PieceRequest(BLOB, MANY, reported.append, requester))
    assert [len(answers) for answers in reported] == counts
    assert [number for answers in reported for number, _ in answers] == list(range(16))


async def test_failed_fill_reports_what_it_filled_before(autojump_clock):
    reported = []
    await Slow(5).read_pieces(base.PieceRequest(BLOB, MANY, reported.extend, FILL))
    assert [number for number, _ in reported] == list(range(16))
    failed = [number for number, outcome in reported if isinstance(outcome, Exception)]
    assert failed == list(range(5, 16))


async def test_cancelled_fill_reports_nothing_more(autojump_clock):
    reported = []
    with trio.move_on_after(0.15):
        await Slow(16).read_pieces(base.PieceRequest(BLOB, MANY, reported.append, FILL))
    assert [len(answers) for answers in reported] == [3]


async def test_fill_that_hangs_keeps_the_pieces_before(autojump_clock):
    reported = []
    source = deadline_source.DeadlineSource(Slow(5, hangs=True), 1.0)
    await source.read_pieces(base.PieceRequest(BLOB, MANY, reported.extend, FILL))
    assert [number for number, _ in reported] == list(range(16))
    assert [outcome for _, outcome in reported[:5]] == 5 * [bytes(10)]
    assert {type(outcome) for _, outcome in reported[5:]} == {errors.SourceUnreachable}
