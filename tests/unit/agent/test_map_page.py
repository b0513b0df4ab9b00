# SPDX-License-Identifier: Apache-2.0
"""Pages of a remote chunk map are read one by one, and each is validated."""

import random

import pytest

from acstor_agent.images.maps import map_page
from acstor_agent.runtime import interpreter
from acstor_agent.sources import base
from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.formats import chunk_map_header
from acstor_common.formats import layout
from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import chunk_maps
from tests.fakes import faulty_source

IMAGE_ID = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
MAP = base.Blob(IMAGE_ID, base.BlobKind.CHUNK_MAP)
CHUNK = 16 * geometry.KIB
CUT = geometry.Geometry((2 * map_page.PAGE_CIDS + 300) * CHUNK + 5, CHUNK)
STORED_BYTES = 1 << 30


def extents() -> list[layout.Extent]:
    rng = random.Random(4)
    return [
        layout.Extent(
            at, min(65536, CUT.size_bytes - at), layout.Codec.DEFLATE, rng.randrange(1 << 29), 100
        )
        for at in range(0, CUT.size_bytes, 65536)
        if rng.random() < 0.5
    ]


def map_of(found: list[layout.Extent], disk_format=layout.DiskFormat.QCOW2) -> bytes:
    size_bytes = CUT.size_bytes if disk_format is layout.DiskFormat.RAW else STORED_BYTES
    stored = layout.StoredFile(disk_format, size_bytes, len(found))
    cids = (ids.cid_of(b"%d" % n) for n in range(CUT.chunk_count))
    return chunk_maps.made(IMAGE_ID, CUT, cids, stored=stored, entries=map(layout.pack, found))


async def read_all(raw: bytes) -> list[map_page.Page]:
    source = faulty_source.MemorySource({MAP: raw})
    head = chunk_map_header.parse_head(raw, "the map", IMAGE_ID)
    return [await map_page.read(source, *head, number) for number in range(3)]


async def test_pages_match_the_whole_chunk_map():
    raw = map_of(extents())
    whole, pages = chunk_map.ChunkMap.parse(raw, "whole"), await read_all(raw)
    found = map_page.PagedLayout(
        whole.subject, {(IMAGE_ID, n): page for n, page in enumerate(pages)}
    )
    assert (found.stored, found.size_bytes) == (whole.layout.stored, CUT.size_bytes)
    page_bytes = map_page.PAGE_CIDS * CHUNK
    for at in (0, 3 * CHUNK, page_bytes - CHUNK, page_bytes, CUT.size_bytes - 5):
        assert found.find(at, at + CHUNK) == whole.layout.find(at, at + CHUNK)
    assert found.find(0, CUT.size_bytes) == whole.layout.find(0, CUT.size_bytes)
    for number in (0, map_page.PAGE_CIDS - 1, map_page.PAGE_CIDS, CUT.chunk_count - 1):
        page, at = divmod(number, map_page.PAGE_CIDS)
        assert pages[page].cid_at(at) == whole.cid_of(number)


async def test_check_of_a_page_lets_other_threads_run(monkeypatch):
    pauses: list[None] = []
    monkeypatch.setattr(interpreter, "release", lambda: pauses.append(None))
    await read_all(map_of(extents()))
    assert pauses


async def test_page_of_a_raw_image_has_only_cids():
    pages = await read_all(map_of([], layout.DiskFormat.RAW))
    assert [len(page.entries) for page in pages] == [0, 0, 0]
    assert pages[2].size_bytes == 301 * ids.CID_BYTES


async def test_layout_of_an_evicted_page_fails_as_overloaded():
    raw = map_of(extents())
    found = map_page.PagedLayout(chunk_map_header.subject_of(raw, "m", IMAGE_ID), {})
    with pytest.raises(errors.SourceOverloaded, match="its layout was evicted"):
        found.find(0, CHUNK)


TABLES = chunk_map.Tables(-(-CUT.chunk_count // chunk_map.PAGE_CHUNKS), CUT.chunk_count)
AT_ENTRIES = chunk_map_header.sections(CUT, layout.raw_file(CUT.size_bytes), TABLES).entries_at


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [
        (8, 7 << 56, "codec 7 is not known"),
        (8, 1 << 56 | STORED_BYTES, "beyond the end of the stored file"),
        (0, 1 << 63, "is not between"),
    ],
)
async def test_page_with_an_invalid_extent_is_refused(at, value, why):
    raw = bytearray(map_of(extents()))
    raw[AT_ENTRIES + at : AT_ENTRIES + at + 8] = value.to_bytes(8, "little")
    with pytest.raises(errors.ChunkMapFormatError, match=why):
        await read_all(bytes(raw))


@pytest.mark.parametrize("slot", [(1 << 64) - 1, 1 << 40, 5000])
async def test_invalid_index_slot_is_refused_before_entries_are_read(slot):
    found = extents()
    raw = bytearray(map_of(found))
    at = AT_ENTRIES + len(found) * layout.ENTRY_BYTES + 8 * layout.SLOT_BYTES
    raw[at : at + 8] = slot.to_bytes(8, "little")
    with pytest.raises(errors.ChunkMapFormatError, match=r"too many|does not fit"):
        await read_all(bytes(raw))
