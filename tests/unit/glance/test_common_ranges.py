# SPDX-License-Identifier: Apache-2.0
"""Common ranges of two images, by CIDs and layouts alone."""

import random

import pytest

from acstor_common.formats import boot_image
from acstor_common.formats import chunk_map
from acstor_common.formats import layout
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_glance.boot import predecessor_images
from acstor_glance.dedup import common_ranges
from tests.fakes import chunk_maps

CHUNK = geometry.MIN_CHUNK_BYTES
STORED, DEFLATE = layout.Codec.STORED, layout.Codec.DEFLATE
Extent, Range = layout.Extent, common_ranges.Range
BLOCK = 4096


def chunks(numbers: str, last_bytes: int = CHUNK) -> list[bytes]:
    """Return the chunks of an image: one for each letter, zeros for a point."""
    found = [bytes(CHUNK) if c == "." else random.Random(c).randbytes(CHUNK) for c in numbers]
    return [*found[:-1], found[-1][:last_bytes]]


def made(
    numbers: str, extents: list[Extent] | None = None, last_bytes: int = CHUNK
) -> chunk_map.ChunkMap:
    """Return the map of an image that is raw, or laid out as ``extents``."""
    data = chunks(numbers, last_bytes)
    cut = geometry.Geometry(sum(map(len, data)), CHUNK)
    entries = list(map(layout.pack, layout.merge_within_pages(extents or [], cut)))
    stored = layout.raw_file(cut.size_bytes)
    if extents is not None:
        stored = layout.StoredFile(layout.DiskFormat.QCOW2, 1 << 40, len(entries))
    image_id = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
    cids = (ids.cid_of(one) if any(one) else ids.ZERO_CID for one in data)
    raw = chunk_maps.made(image_id, cut, cids, stored=stored, entries=entries)
    return chunk_map.ChunkMap.parse(raw, "test")


def plain(at: int, count: int, offset: int) -> Extent:
    """Return an extent of whole chunks."""
    return Extent(at * CHUNK, count * CHUNK, STORED, offset, count * CHUNK)


def found(image, base, block_bytes=BLOCK):
    return list(common_ranges.find_ranges(image, base, block_bytes))


@pytest.mark.parametrize(
    ("image", "base", "own"),
    [
        ("abc", "abc", 0),
        ("axc", "abc", 1),
        ("a.c", "abc", 0),
        ("abx", "ab.", 1),
        ("bca", "abc", 3),
        ("abcde", "abc", 2),
        ("a", "abc", 0),
        ("...", "...", 0),
    ],
)
def test_own_bytes_are_those_that_differ_from_the_base_at_their_offset(image, base, own):
    assert common_ranges.own_bytes(made(image), made(base)) == own * CHUNK


def test_short_last_chunk_counts_with_its_length():
    assert common_ranges.own_bytes(made("abx", last_bytes=100), made("abc")) == 100


def test_common_chunks_of_raw_images_are_merged_into_runs():
    image, base = made("abxde"), made("abcdef")
    expected = [Range(0, 0, 2 * CHUNK), Range(3 * CHUNK, 3 * CHUNK, 2 * CHUNK)]
    assert found(image, base) == expected
    assert found(made("abc"), made("xyz")) == []


def test_common_chunks_at_different_file_offsets_are_found():
    image = made("abcd", [plain(0, 2, 1 << 20), plain(2, 2, 1 << 30)])
    base = made("abcd", [plain(0, 1, 1 << 21), plain(1, 3, 1 << 16)])
    assert found(image, base) == [
        Range(1 << 20, 1 << 21, CHUNK),
        Range((1 << 20) + CHUNK, 1 << 16, CHUNK),
        Range(1 << 30, (1 << 16) + CHUNK, 2 * CHUNK),
    ]
    assert found(made("abcd"), base)[0] == Range(0, 1 << 21, CHUNK)


def test_runs_contiguous_in_both_files_are_merged():
    image = made("abcd", [plain(at, 1, (1 << 20) + at * CHUNK) for at in range(4)])
    assert found(image, made("abcd")) == [Range(1 << 20, 0, 4 * CHUNK)]


def test_compressed_or_unstored_chunks_are_left_out():
    packed = Extent(CHUNK, CHUNK, DEFLATE, 1 << 22, 5000)
    image = made("abc", [plain(0, 1, 1 << 20), packed, plain(2, 1, 1 << 21)])
    base = made("abc", [plain(0, 3, 1 << 16)])
    assert [one.offset for one in found(image, base)] == [1 << 20, 1 << 21]
    assert [one.base_offset for one in found(base, image)] == [1 << 20, 1 << 21]
    assert found(made("a.", [plain(0, 1, 1 << 20)]), made("a.")) == [Range(1 << 20, 0, CHUNK)]


def test_stored_zeros_are_found():
    image = made("..", [plain(1, 1, 1 << 20)])
    assert found(image, made("..")) == [Range(1 << 20, CHUNK, CHUNK)]


def test_only_whole_aligned_blocks_are_found():
    image, base = (made("ab", [plain(0, 2, at)]) for at in ((1 << 20) + 512, (1 << 21) + 512))
    [one] = found(image, base)
    assert one == Range((1 << 20) + BLOCK, (1 << 21) + BLOCK, 2 * CHUNK - BLOCK)
    assert found(image, made("ab")) == []
    assert found(image, made("ab"), 512) == [Range((1 << 20) + 512, 0, 2 * CHUNK)]
    assert found(made("ab", last_bytes=5000), made("ab", last_bytes=5000)) == [
        Range(0, 0, CHUNK + BLOCK)
    ]
    assert found(image, base, 1 << 20) == []


class CountedMap(chunk_map.ChunkMap):
    """A chunk map that counts the lookups of CIDs."""

    __slots__ = ("lookups",)

    def cid_of(self, chunk_no):
        self.lookups = getattr(self, "lookups", 0) + 1
        return super().cid_of(chunk_no)


def test_zeros_of_a_stated_disk_size_are_not_looked_up():
    data = plain(7000, 1, 1 << 16)
    image, base = made("." * 7000 + "a" + "." * 7000, [data]), made("a")
    image = CountedMap(image._buffer, image.subject, image.tables)
    assert common_ranges.own_bytes(image, base) == CHUNK
    assert found(image, image) == [Range(1 << 16, 1 << 16, CHUNK)]
    assert predecessor_images.inherit_trace(boot_image.ProfiledTrace((0,)), base, image) == ((), {})
    assert image.lookups < 10


def test_images_with_other_chunk_sizes_have_no_common_ranges():
    image = made("ab")
    cut = geometry.Geometry(2 * CHUNK, 2 * CHUNK)
    subject = image.subject._replace(geometry=cut, stored=layout.raw_file(2 * CHUNK))
    raw = chunk_maps.made(*subject[:2], [ids.cid_of(b"".join(chunks("ab")))])
    base = chunk_map.ChunkMap.parse(raw, "test")
    assert found(image, base) == []
    assert common_ranges.own_bytes(image, base) == 2 * CHUNK
