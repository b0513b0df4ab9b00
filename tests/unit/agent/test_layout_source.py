# SPDX-License-Identifier: Apache-2.0
"""Reads of stored images return the guest's bytes exactly, or an error."""

import itertools
import random
import zlib

import pytest
import trio
import trio.testing
import zstandard

from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.sources import attempt_timeout
from acstor_agent.sources import base
from acstor_agent.sources import driver
from acstor_agent.sources import source_client
from acstor_agent.sources.wrappers import deadline_source
from acstor_agent.sources.wrappers import layout_source
from acstor_common import errors
from acstor_common.formats import codecs
from acstor_common.formats import layout
from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import faulty_source

IMAGE_ID = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
IMAGE = base.Blob(IMAGE_ID, base.BlobKind.IMAGE)
QCOW2 = base.Blob(IMAGE_ID, base.BlobKind.QCOW2)
KIB = geometry.KIB
CHUNK = 16 * KIB
CODECS = (layout.Codec.STORED, layout.Codec.DEFLATE, layout.Codec.ZSTD)


def compressed(codec: layout.Codec, data: bytes) -> bytes:
    if codec is layout.Codec.STORED:
        return data
    if codec is layout.Codec.ZSTD:
        return zstandard.ZstdCompressor().compress(data)
    deflate = zlib.compressobj(wbits=-12)
    return deflate.compress(data) + deflate.flush()


class Image:
    """An image in memory, stored in clusters; its bytes, and where they are.

    :param slack: bytes that extents are longer than their streams
    """

    def __init__(self, length=40 * CHUNK + 1000, cluster=CHUNK, slack=0, seed=1):
        rng = random.Random(seed)
        self.data, self.stored, extents = bytearray(length), bytearray(b"header"), []
        for at in range(0, length, cluster):
            if not at or rng.random() < 0.8:
                size = min(cluster, length - at)
                self.data[at : at + size] = rng.randbytes(size // 2 + 1).hex().encode()[:size]
                codec = rng.choice(CODECS)
                stream = compressed(codec, bytes(self.data[at : at + size]))
                extents.append(layout.Extent(at, size, codec, len(self.stored), len(stream)))
                self.stored += stream
        self.cut = geometry.Geometry(length, CHUNK)
        self.extents = [self._longer(extent, slack) for extent in extents]
        self.set_layout(self.extents)
        self.pieces = [self.piece(n) for n in range(self.cut.chunk_count)]

    def _longer(self, extent, slack):
        if extent.codec is layout.Codec.STORED:
            return extent
        longest = len(self.stored) - extent.offset
        return extent._replace(stored_bytes=min(extent.stored_bytes + slack, longest))

    def set_layout(self, extents):
        entries = b"".join(layout.pack(e) for e in layout.merge_within_pages(extents, self.cut))
        index = layout.IndexBuilder(self.cut)
        index.add_entries(entries)
        count = len(entries) // layout.ENTRY_BYTES
        of = layout.StoredFile(layout.DiskFormat.QCOW2, len(self.stored), count)
        assert layout.why_invalid(entries, index.index_slots(), self.cut, of) is None
        self.layout = layout.Layout(entries + index.index_slots(), 0, self.cut, of)

    def piece(self, chunk_no):
        at = chunk_no * CHUNK
        chunk = bytes(self.data[at : at + CHUNK])
        return base.BlobPiece(at, len(chunk), ids.Content(ids.cid_of(chunk)))

    def bytes_of(self, pieces):
        return [bytes(self.data[p.offset : p.offset + p.length]) for p in pieces]


class OneByOne(base.Wrapper):
    """Reads each piece by itself, so that each can fail by itself."""

    async def read_pieces(self, request):
        for number, piece in enumerate(request.pieces):
            report = driver.shifted_report(request.report, number)
            await self._inner.read_pieces(request._replace(pieces=[piece], report=report))


class Rig:
    """A source that has an image, and records its reads."""

    def __init__(self, image, nursery, slow_s=layout_source.SLOW_S, **faults):
        self.blobs = {QCOW2: bytes(image.stored)}
        self.faulty = faulty_source.FaultySource(faulty_source.MemorySource(self.blobs), **faults)
        self.source = layout_source.LayoutSource(
            self.faulty, lambda image_id: image.layout, nursery, slow_s=slow_s
        )


async def outcomes_of(source, pieces, blob=IMAGE):
    """Return the outcome of each piece; fail if one is reported twice or never."""
    reported = []
    await source.read_pieces(base.PieceRequest(blob, pieces, reported.extend))
    assert sorted(number for number, _ in reported) == list(range(len(pieces)))
    return [dict(reported)[number] for number in range(len(pieces))]


@pytest.mark.parametrize("slack", [0, 300])
@pytest.mark.parametrize("cluster", [512, 4 * KIB, CHUNK, 2 * CHUNK, 256 * KIB])
async def test_pieces_equal_the_bytes_that_the_guest_reads(nursery, cluster, slack):
    image = Image(cluster=cluster, slack=slack)
    rig = Rig(image, nursery)
    for pieces in (image.pieces, image.pieces[::-1], image.pieces[::3], [image.pieces[2]] * 3, []):
        assert await outcomes_of(rig.source, pieces) == image.bytes_of(pieces)
    rng = random.Random(2)
    starts = [0, *sorted(rng.sample(range(1, len(image.data)), 40)), len(image.data)]
    pieces = [base.BlobPiece(a, b - a) for a, b in itertools.pairwise(starts)]
    assert b"".join(await outcomes_of(rig.source, pieces)) == image.data
    assert await rig.source.read(IMAGE, 1000, 50_000) == image.data[1000:51_000]


async def test_adjacent_pieces_are_one_source_read_without_overlap(nursery):
    image = Image(cluster=4 * KIB, slack=200)
    rig = Rig(image, nursery)
    await outcomes_of(rig.source, image.pieces)
    stored = sum(length for _, length in rig.faulty.reads)
    assert stored <= len(image.stored)
    assert len(rig.faulty.reads) == 1


async def test_zeros_are_not_read_and_raw_images_are_read_directly(nursery):
    image = Image()
    image.set_layout([])
    rig = Rig(image, nursery)
    zeros = [base.BlobPiece(0, CHUNK), base.BlobPiece(CHUNK, CHUNK)]
    assert await outcomes_of(rig.source, zeros) == [bytes(CHUNK)] * 2
    assert rig.faulty.reads == []
    rig.blobs[IMAGE] = bytes(image.data)
    image.layout = layout.Layout(b"", 0, image.cut, layout.raw_file(len(image.data)))
    assert await outcomes_of(rig.source, image.pieces) == image.bytes_of(image.pieces)


async def test_blobs_that_are_no_images_are_read_unchanged(nursery):
    rig = Rig(Image(), nursery)
    chunk_map = base.Blob(IMAGE_ID, base.BlobKind.CHUNK_MAP)
    rig.blobs[chunk_map] = b"a map"
    assert await rig.source.read(chunk_map, 2, 3) == b"map"
    assert await rig.source.read(QCOW2, 0, 6) == b"header"


async def test_image_without_a_known_layout_fails_as_overloaded(nursery):
    rig = Rig(Image(), nursery)
    rig.source._layout_of = lambda image_id: None
    [outcome] = await outcomes_of(rig.source, [base.BlobPiece(0, 5)])
    assert type(outcome) is errors.SourceOverloaded
    assert rig.faulty.reads == []


async def test_piece_past_the_end_is_missing_and_its_neighbours_succeed(nursery):
    image = Image()
    rig = Rig(image, nursery)
    past = base.BlobPiece(len(image.data), 1)
    *good, missing = await outcomes_of(rig.source, [*image.pieces, past])
    assert good == image.bytes_of(image.pieces)
    assert type(missing) is errors.ChunkMissing
    with pytest.raises(errors.LocalProtocolError):
        await rig.source.read_pieces(
            base.PieceRequest(IMAGE, [base.BlobPiece(-1, 5)], lambda answers: None)
        )


@pytest.mark.parametrize("cluster", [4 * KIB, CHUNK, 4 * CHUNK])
async def test_damaged_cluster_invalidates_only_its_own_chunks(nursery, cluster):
    image = Image(length=12 * CHUNK, cluster=cluster)
    for extent in image.extents:
        rig = Rig(image, nursery)
        damaged = bytearray(image.stored)
        damaged[extent.offset + extent.stored_bytes // 2] ^= 0x55
        rig.blobs[QCOW2] = bytes(damaged)
        outcomes = await outcomes_of(rig.source, image.pieces)
        wrong = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, Exception)]
        first, last = extent.at // CHUNK, (extent.at + extent.length - 1) // CHUNK
        assert wrong and set(wrong) <= set(range(first, last + 1))
        assert all(type(outcomes[n]) is errors.ChunkInvalid for n in wrong)
        assert all(outcomes[n].where == "memory" for n in wrong)
        for n, expected in enumerate(image.bytes_of(image.pieces)):
            assert n in wrong or outcomes[n] == expected
        rig.blobs[QCOW2] = bytes(image.stored)  # wrong data is not cached
        assert await outcomes_of(rig.source, image.pieces) == image.bytes_of(image.pieces)


async def test_decoding_is_scheduled_by_image_and_requester(nursery, monkeypatch):
    image = Image()
    rig, turns = Rig(image, nursery), []
    run = rig.source._decoding.run

    async def noted(image_id, requester, steps):
        turns.append((image_id, requester))
        await run(image_id, requester, steps)

    monkeypatch.setattr(rig.source._decoding, "run", noted)
    seen = []
    read_stored = rig.faulty.read_pieces

    async def note_requester(request):
        seen.append(request.requester)
        await read_stored(request)

    monkeypatch.setattr(rig.faulty, "read_pieces", note_requester)
    around = source_client.SourceClient([rig.source])
    guest = base.Requester(requests.Klass.GUEST, "an image/7")
    reported = []
    await around.read_pieces(base.PieceRequest(IMAGE, image.pieces, reported.extend, guest))
    assert len(reported) == len(image.pieces) and set(turns) == {(IMAGE.image_id, guest)}
    assert seen == [guest]
    await around.read(IMAGE, 0, len(image.data))
    assert set(turns) == {(IMAGE.image_id, guest), (IMAGE.image_id, base.AGENT)}


async def test_decode_time_does_not_count_against_the_source_timeout(
    nursery, monkeypatch, autojump_clock
):
    image = Image()
    rig = Rig(image, nursery)
    rig.source._inner = deadline_source.DeadlineSource(rig.faulty)
    run = rig.source._decoding.run

    async def slow(*args):
        await trio.sleep(2 * attempt_timeout.MOST_S)
        await run(*args)

    monkeypatch.setattr(rig.source._decoding, "run", slow)
    source = source_client.SourceClient([rig.source])
    assert await outcomes_of(source, image.pieces[:2]) == image.bytes_of(image.pieces[:2])
    assert source.list_statuses()[0].health.missed_attempts == 0


async def test_next_source_supplies_chunks_that_the_first_has_wrong(nursery):
    image = Image()
    liar, honest = Rig(image, nursery), Rig(image, nursery)
    liar.blobs[QCOW2] = bytes(len(image.stored))
    both = source_client.SourceClient([liar.source, honest.source])
    assert await outcomes_of(both, image.pieces) == image.bytes_of(image.pieces)


@pytest.mark.parametrize("fault", ["fail", "truncate"])
async def test_failed_read_fails_only_the_pieces_that_need_it(nursery, fault):
    image = Image(cluster=2 * CHUNK, slack=100)
    expected = image.bytes_of(image.pieces)
    for nth in range(1, 100):
        rig = Rig(image, nursery, **{fault: [nth]})
        rig.source._inner = OneByOne(rig.faulty)
        outcomes = await outcomes_of(rig.source, image.pieces)
        bad = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        if len(rig.faulty.reads) < nth:
            assert nth > 10 and not bad
            return
        assert bad and all(isinstance(e, errors.ChunkUnavailable) for e in bad)
        for outcome, right in zip(outcomes, expected, strict=True):
            assert isinstance(outcome, Exception) or outcome == right
    pytest.fail("it never ends")


async def test_decompression_bomb_is_cut_or_refused(nursery):
    """The cluster decompresses to a thousand times its allowed size."""
    image = Image(length=2 * CHUNK)
    bombs = [compressed(codec, bytes(64 << 20)) for codec in CODECS[1:]]
    extents, stored = [], bytearray()
    for n, (codec, bomb) in enumerate(zip(CODECS[1:], bombs, strict=True)):
        extents.append(layout.Extent(n * CHUNK, CHUNK, codec, len(stored), len(bomb)))
        stored += bomb
    image.stored = stored
    image.set_layout(extents)
    rig = Rig(image, nursery)
    zeros = ids.Content(ids.cid_of(bytes(CHUNK)))
    pieces = [base.BlobPiece(n * CHUNK, CHUNK, zeros) for n in range(2)]
    for outcome in await outcomes_of(rig.source, pieces):
        assert isinstance(outcome, errors.ChunkInvalid) or outcome == bytes(CHUNK)


async def test_large_cluster_is_read_once_for_its_chunks(nursery):
    image = Image(length=32 * CHUNK, cluster=16 * CHUNK)
    image.extents[0] = image.extents[0]
    rig = Rig(image, nursery)
    for piece in image.pieces:
        [data] = await outcomes_of(rig.source, [piece])
        assert data == image.bytes_of([piece])[0]
        assert not isinstance(data, memoryview) or len(data.obj) == CHUNK  # holds no cluster
    offsets = [offset for offset, _ in rig.faulty.reads]
    compressed_at = [e.offset for e in image.extents if e.codec]
    assert compressed_at and all(offsets.count(offset) == 1 for offset in compressed_at)


async def test_slow_cluster_of_many_extents_is_decoded_once(nursery, monkeypatch):
    image = Image(length=20 * CHUNK)
    first = next(extent for extent in image.extents if extent.codec)
    cluster = bytes(image.data[first.at : first.at + CHUNK])
    image.data[:] = 20 * cluster
    image.set_layout([first._replace(at=n * CHUNK) for n in range(20)])
    decoded = []
    real = codecs.decode_steps

    def decode_steps(*args):
        decoded.append(args)
        return real(*args)

    monkeypatch.setattr(codecs, "decode_steps", decode_steps)
    rig = Rig(image, nursery, slow_s=0.0)
    pieces = [base.BlobPiece(n * CHUNK, CHUNK) for n in range(20)]
    for piece in pieces:
        assert await outcomes_of(rig.source, [piece]) == [cluster]
    assert await outcomes_of(rig.source, pieces) == [cluster] * 20
    assert len(decoded) == 1


async def test_cancelled_read_gets_no_more_reports_and_later_reads_succeed(nursery):
    image = Image()
    rig = Rig(image, nursery, delay=[1], delay_s=0.1)
    reported = []
    with trio.move_on_after(0.02):
        await rig.source.read_pieces(base.PieceRequest(IMAGE, image.pieces, reported.extend))
    before = list(reported)
    assert await outcomes_of(rig.source, image.pieces) == image.bytes_of(image.pieces)
    assert reported == before


async def test_waiting_reads_are_answered_when_the_agent_stops():
    image = Image(length=4 * CHUNK)
    outcomes = []

    async def read(source):
        outcomes.extend(await outcomes_of(source, image.pieces))

    async with trio.open_nursery() as callers:
        async with trio.open_nursery() as inner:
            rig = Rig(image, inner)
            direct = layout_source.LayoutSource(
                faulty_source.MemorySource(rig.blobs), lambda image_id: image.layout, inner
            )
            callers.start_soon(read, direct)
            await trio.testing.wait_all_tasks_blocked()
            inner.cancel_scope.cancel()
    assert all(
        isinstance(outcome, errors.SourceUnreachable) or bytes(outcome) in image.data
        for outcome in outcomes
    )
