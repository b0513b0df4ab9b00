# SPDX-License-Identifier: Apache-2.0
"""What every source promises; each driver and each wrapper runs all of it."""

import contextlib
import itertools
import pathlib
import random
import zlib
from collections.abc import AsyncIterator
from collections.abc import Callable

import pytest
import trio

from acstor_agent.sources import base
from acstor_agent.sources import file
from acstor_agent.sources import gateway
from acstor_agent.sources import glance
from acstor_agent.sources import http
from acstor_agent.sources import source_client
from acstor_agent.sources.wrappers import deadline_source
from acstor_agent.sources.wrappers import download_source
from acstor_agent.sources.wrappers import layout_source
from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.formats import layout
from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import chunk_maps
from tests.fakes import fake_glance
from tests.fakes import http_server
from tests.fakes import rangeless

IMAGE = base.Blob(ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"), base.BlobKind.IMAGE)
CHUNK_MAP = base.Blob(IMAGE.image_id, base.BlobKind.CHUNK_MAP)
EMPTY = base.Blob(ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12"), base.BlobKind.IMAGE)
ABSENT = base.Blob(ids.ImageId("00000000-0000-0000-0000-000000000000"), base.BlobKind.IMAGE)
BLOBS = {
    IMAGE: random.Random(1).randbytes(300_001),
    CHUNK_MAP: random.Random(2).randbytes(5_000),
    EMPTY: b"",
}
SIZE = len(BLOBS[IMAGE])

CHUNK, CLUSTER = 65_536, 20_000

Make = Callable[[pathlib.Path, trio.Nursery], contextlib.AbstractContextManager[base.Source]]


def blobs_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@contextlib.contextmanager
def over_http(folder, nursery):
    with http_server.serve(blobs_of(folder)) as server:
        yield http.HttpSource(server.url)


@contextlib.contextmanager
def over_glance(folder, nursery):
    with fake_glance.serving(blobs_of(folder)) as server:
        yield glance.GlanceSource(fake_glance.session(server.url))


@contextlib.contextmanager
def over_gateway(folder, nursery):
    with fake_glance.serving(blobs_of(folder)) as server:
        for name in [name for name in server.files if name.endswith("/file")]:
            server.files[name.replace("v2/", "v1/")] = server.files.pop(name)
        yield gateway.GatewaySource(fake_glance.session(server.url))


@contextlib.contextmanager
def over_whole(folder, nursery):
    """Let Glance give nothing in parts."""
    with fake_glance.serving(blobs_of(folder)) as server:
        server.always = rangeless.Rangeless()
        driver = glance.GlanceSource(fake_glance.session(server.url))
        copies = download_source.DownloadSource(
            *(driver, folder, nursery, random.Random(3)),
            limits=download_source.DownloadLimits(image_wait_s=60.0),
        )
        yield source_client.SourceClient([driver], copies=copies)


@contextlib.contextmanager
def over_whole_qcow2(folder, nursery):
    """Let Glance give nothing of compressed files in parts."""
    with (
        over_qcow2(folder, nursery) as by_layout,
        fake_glance.serving(blobs_of(folder)) as server,
    ):
        server.always = rangeless.Rangeless()
        driver = glance.GlanceSource(fake_glance.session(server.url))
        copies = download_source.DownloadSource(
            *(driver, folder, nursery, random.Random(3)),
            limits=download_source.DownloadLimits(image_wait_s=60.0),
        )
        first, last = (
            layout_source.LayoutSource(place, by_layout._layout_of, nursery)
            for place in (driver, copies)
        )
        yield source_client.SourceClient([first], copies=copies, read_copies=last)


def over_files(wrap: Callable[[base.Source, trio.Nursery], base.Source]) -> Make:
    @contextlib.contextmanager
    def make(folder, nursery):
        yield wrap(file.FileSource(str(folder)), nursery)

    return make


def raw_layout(image_id):
    size_bytes = len(BLOBS.get(base.Blob(image_id, base.BlobKind.IMAGE), b""))
    cut = geometry.Geometry(size_bytes, CHUNK)
    return layout.Layout(b"", 0, cut, layout.raw_file(size_bytes))


@contextlib.contextmanager
def over_qcow2(folder, nursery):
    """Let each image be stored in another way: in clusters, the last one first, each compressed."""
    layouts = {}
    for blob, data in BLOBS.items():
        if blob.kind is base.BlobKind.IMAGE and data:  # an empty image has no chunk map
            (folder / blob.file_name).unlink()
            found, stored = [], b""
            for at in range(len(data) // CLUSTER * CLUSTER, -1, -CLUSTER):
                part = zlib.compress(data[at : at + CLUSTER], wbits=-12)
                length = min(CLUSTER, len(data) - at)
                if length:
                    found.append(
                        layout.Extent(at, length, layout.Codec.DEFLATE, len(stored), len(part))
                    )
                    stored += part
            qcow2 = layout.DiskFormat.QCOW2
            (folder / base.stored_blob(blob.image_id, qcow2).file_name).write_bytes(stored)
            cut = geometry.Geometry(len(data), CHUNK)
            raw = chunk_maps.made(
                blob.image_id,
                cut,
                [bytes(cut.chunk_count * ids.CID_BYTES)],
                stored=layout.StoredFile(qcow2, len(stored), len(found)),
                entries=map(layout.pack, reversed(found)),
            )
            layouts[blob.image_id] = chunk_map.ChunkMap.parse(raw, blob.file_name).layout
    yield layout_source.LayoutSource(
        file.FileSource(str(folder)),
        lambda image_id: layouts.get(image_id) or raw_layout(image_id),
        nursery,
    )


def failed_over(source, nursery):
    nowhere = file.FileSource("/nonexistent/folder")
    return source_client.SourceClient([nowhere, source])


SOURCES: dict[str, Make] = {
    "file": over_files(lambda source, nursery: source),
    "http": over_http,
    "glance": over_glance,
    "gateway": over_gateway,
    "deadline": over_files(lambda source, nursery: deadline_source.DeadlineSource(source)),
    "layout, raw": over_files(lambda s, n: layout_source.LayoutSource(s, raw_layout, n)),
    "layout, qcow2": over_qcow2,
    "client": over_files(failed_over),
    "whole": over_whole,
    "whole, qcow2": over_whole_qcow2,
}


@pytest.fixture(params=SOURCES)
async def source(request, tmp_path, nursery) -> AsyncIterator[base.Source]:
    for blob, data in BLOBS.items():
        (tmp_path / blob.file_name).write_bytes(data)
    with SOURCES[request.param](tmp_path, nursery) as made:
        yield made
        await made.aclose()


@pytest.mark.parametrize(
    ("offset", "length"),
    [(0, 1), (0, SIZE), (SIZE - 1, 1), (65_536, 65_536), (12_345, 99_999), (0, 1_000)],
)
async def test_any_range_equals_the_stored_bytes(source, offset, length):
    data = await source.read(IMAGE, offset, length)
    assert type(data) is bytes
    assert data == BLOBS[IMAGE][offset : offset + length]


CHUNKS = [
    base.BlobPiece(at, len(chunk), ids.Content(ids.cid_of(chunk)))
    for at in range(0, SIZE, CHUNK)
    for chunk in [BLOBS[IMAGE][at : at + CHUNK]]
]
WRONG = ids.Content(ids.cid_of(b"other bytes"))


async def outcomes_of(source, blob, pieces):
    """Return the outcome of each piece; fail if one is reported twice or never."""
    reported = []
    await source.read_pieces(base.PieceRequest(blob, pieces, reported.extend))
    assert sorted(number for number, _ in reported) == list(range(len(pieces)))
    return [dict(reported)[number] for number in range(len(pieces))]


@pytest.mark.parametrize("order", [CHUNKS, CHUNKS[::-1], CHUNKS[::2], [CHUNKS[1]] * 3, []])
async def test_many_pieces_equal_the_stored_bytes(source, order):
    outcomes = await outcomes_of(source, IMAGE, order)
    assert outcomes == [BLOBS[IMAGE][p.offset : p.offset + p.length] for p in order]


async def test_pieces_of_any_length_equal_the_stored_bytes(source):
    starts = [0, 1, 4096, 70_000, 70_001, 299_999, SIZE]
    pieces = [base.BlobPiece(a, b - a) for a, b in itertools.pairwise(starts)]
    outcomes = await outcomes_of(source, IMAGE, pieces)
    assert b"".join(outcomes) == BLOBS[IMAGE]


async def test_corrupt_piece_is_invalid_and_its_neighbours_are_returned(source):
    pieces = [piece._replace(content=WRONG) if n == 2 else piece for n, piece in enumerate(CHUNKS)]
    outcomes = await outcomes_of(source, IMAGE, pieces)
    invalid = outcomes.pop(2)
    assert type(invalid) is errors.ChunkInvalid
    assert f"{IMAGE.file_name} bytes 131072-196607" in str(invalid)
    del pieces[2]
    assert outcomes == [BLOBS[IMAGE][p.offset : p.offset + p.length] for p in pieces]


async def test_piece_past_the_end_is_missing_and_its_neighbours_are_returned(source):
    past = [base.BlobPiece(SIZE, 5), base.BlobPiece(SIZE + 5, 10_000)]
    *good, first, second = await outcomes_of(source, IMAGE, [*CHUNKS, *past])
    assert b"".join(good) == BLOBS[IMAGE]
    assert isinstance(first, errors.ChunkMissing) and isinstance(second, errors.ChunkMissing)


async def test_each_piece_of_an_absent_blob_is_missing(source):
    outcomes = await outcomes_of(source, ABSENT, CHUNKS)
    assert all(isinstance(outcome, errors.ChunkMissing) for outcome in outcomes)


@pytest.mark.parametrize(
    "piece", [base.BlobPiece(-1, 10), base.BlobPiece(0, -1), base.BlobPiece(5, 0)]
)
async def test_invalid_piece_is_a_bug_of_the_caller(source, piece):
    with pytest.raises(errors.LocalProtocolError, match=IMAGE.file_name):
        await source.read_pieces(base.PieceRequest(IMAGE, [CHUNKS[0], piece], lambda answers: None))


async def test_cancelled_caller_receives_no_more_pieces(source):
    reported = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await source.read_pieces(base.PieceRequest(IMAGE, CHUNKS, reported.extend))
    before = len(reported)
    assert (await outcomes_of(source, IMAGE, CHUNKS))[0] == BLOBS[IMAGE][:CHUNK]
    assert len(reported) == before


@pytest.mark.parametrize("blob", BLOBS)
async def test_size_equals_the_size_of_the_blob(source, blob):
    assert await source.size_bytes(blob) == len(BLOBS[blob])


@pytest.mark.parametrize("blob", BLOBS)
async def test_found_blob_has_a_stable_and_distinct_version(source, blob):
    first = await source.find_blob(blob)
    assert first.size_bytes == len(BLOBS[blob])
    await source.read(IMAGE, 0, 1)
    assert await source.find_blob(blob) == first
    assert first not in {await source.find_blob(other) for other in BLOBS if other != blob}


async def test_absent_blob_is_not_found(source):
    with pytest.raises(errors.ChunkMissing, match=ABSENT.file_name):
        await source.find_blob(ABSENT)


async def test_image_and_chunk_map_are_different_blobs(source):
    assert await source.read(CHUNK_MAP, 0, 5_000) == BLOBS[CHUNK_MAP]


async def test_matching_cid_returns_the_bytes(source):
    chunk = BLOBS[IMAGE][:65_536]
    assert await source.read(IMAGE, 0, 65_536, ids.Content(ids.cid_of(chunk))) == chunk


@pytest.mark.parametrize(
    ("offset", "length"), [(SIZE, 1), (SIZE - 1, 2), (0, SIZE + 1), (SIZE + 4096, 4096)]
)
async def test_range_past_the_end_is_missing_with_its_name(source, offset, length):
    with pytest.raises(errors.ChunkMissing) as caught:
        await source.read(IMAGE, offset, length)
    assert f"{IMAGE.file_name} bytes {offset}-{offset + length - 1}" in str(caught.value)


async def test_absent_blob_is_missing_with_its_name(source):
    with pytest.raises(errors.ChunkMissing, match=ABSENT.file_name):
        await source.read(ABSENT, 0, 10)
    with pytest.raises(errors.ChunkMissing, match=ABSENT.file_name):
        await source.size_bytes(ABSENT)


@pytest.mark.parametrize("blob", [IMAGE, ABSENT])
async def test_empty_range_returns_no_bytes_at_any_offset(source, blob):
    assert await source.read(blob, 10 * SIZE, 0) == b""


@pytest.mark.parametrize(("offset", "length"), [(-1, 10), (0, -1)])
async def test_negative_range_is_a_bug_of_the_caller(source, offset, length):
    with pytest.raises(errors.LocalProtocolError, match=IMAGE.file_name):
        await source.read(IMAGE, offset, length)


async def test_many_tasks_read_concurrently(source):
    rng = random.Random(4)
    wrong = []

    async def read(blob, offset, length):
        if await source.read(blob, offset, length) != BLOBS[blob][offset : offset + length]:
            wrong.append((blob, offset, length))

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            blob = rng.choice([IMAGE, CHUNK_MAP])
            offset = rng.randrange(len(BLOBS[blob]) // 4096 + 1) * 4096
            length = min(rng.choice([4096, 4096, 65_536]), len(BLOBS[blob]) - offset)
            nursery.start_soon(read, blob, offset, length)
    assert wrong == []


async def test_cancelled_readers_do_not_disturb_others(source):
    rng = random.Random(5)
    served = []

    async def read(cancel_after_s):
        with trio.move_on_after(cancel_after_s):
            offset = rng.randrange(60) * 4096
            data = await source.read(IMAGE, offset, 4096)
            assert data == BLOBS[IMAGE][offset : offset + 4096]
            served.append(cancel_after_s)

    async with trio.open_nursery() as nursery:
        for number in range(60):
            nursery.start_soon(read, float("inf") if number % 3 == 0 else rng.random() / 100)
    assert served.count(float("inf")) == 20
    with trio.fail_after(5):
        assert await source.read(IMAGE, 0, SIZE) == BLOBS[IMAGE]


async def test_error_of_one_reader_does_not_disturb_others(source):
    outcomes = {}

    async def read(offset):
        try:
            outcomes[offset] = await source.read(IMAGE, offset, 1_000)
        except errors.ChunkMissing as error:
            outcomes[offset] = error

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read, 0)
        nursery.start_soon(read, SIZE + 1_000_000)
        nursery.start_soon(read, 200_000)
    assert outcomes[0] == BLOBS[IMAGE][:1_000]
    assert outcomes[200_000] == BLOBS[IMAGE][200_000:201_000]
    assert isinstance(outcomes[SIZE + 1_000_000], errors.ChunkMissing)


async def test_location_is_described_in_words(source):
    assert source.location
    assert source.max_concurrent_reads >= 1
