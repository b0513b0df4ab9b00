# SPDX-License-Identifier: Apache-2.0
"""Chunk maps: every byte is covered by a checksum and validated."""

import hashlib
import mmap
import pathlib
import struct
from collections.abc import Callable

import blake3
import hypothesis
import pytest
from hypothesis import strategies

from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.formats import chunk_map_header
from acstor_common.formats import chunk_map_writer
from acstor_common.formats import layout
from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import chunk_maps

IMAGE_ID = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
OTHER_ID = ids.parse_image_id("00000000-0000-4000-8000-000000000001")
GOLDEN = pathlib.Path(__file__).parents[2] / "data" / "chunk_map-v4.acmap"
CUT = geometry.Geometry(size_bytes=3 * 65536 + 100, chunk_bytes=65536)
CIDS = [ids.cid_of(b"a"), ids.ZERO_CID, ids.cid_of(b"b"), ids.cid_of(b"a")]
OS_HASH = chunk_map.OsHash("sha512", hashlib.sha512(b"image").digest())
AT_CIDS = chunk_map.HEADER_BYTES + chunk_map.NUMBER_BYTES
AT_INDEX = AT_CIDS + chunk_map.BLOCK_BYTES
AT_FIRSTS = AT_INDEX + 2 * chunk_map.NUMBER_BYTES
LENGTH = AT_FIRSTS + 2 * chunk_map.NUMBER_BYTES + chunk_map.TRAILER_BYTES
KEYS = (ids.ScopeKey(bytes(range(1, 33))), ids.ScopeKey(bytes(range(33, 65))))


def build(
    cut: geometry.Geometry = CUT,
    cids: list[ids.Cid] = CIDS,
    os_hash: chunk_map.OsHash = OS_HASH,
    scope_keys: chunk_map.ScopeKeys = (),
) -> bytes:
    return chunk_maps.made(IMAGE_ID, cut, cids, os_hash, scope_keys)


def forge(raw: bytes, at: int, fmt: str, *values: object) -> bytes:
    """Write a field and recompute both checksums, as an attacker would."""
    forged = bytearray(raw)
    struct.pack_into("<" + fmt, forged, at, *values)
    forged[416:448] = blake3.blake3(forged[:416]).digest()
    forged[-32:] = blake3.blake3(forged[:-32]).digest()
    return bytes(forged)


def refusal(raw: bytes, **expected: object) -> errors.ChunkMapFormatError:
    with pytest.raises(errors.ChunkMapFormatError) as caught:
        chunk_map.ChunkMap.parse(raw, "the map", **expected)  # type: ignore[arg-type]
    assert caught.value.what == "the map"
    return caught.value


def test_map_returns_the_cids_it_was_built_with() -> None:
    found = chunk_map.ChunkMap.parse(
        build(), "m", expected_image_id=IMAGE_ID, expected_stored_bytes=CUT.size_bytes
    )
    assert (found.image_id, found.geometry) == (IMAGE_ID, CUT)
    assert chunk_map.OsHash(found.os_hash_algo, found.os_hash_value) == OS_HASH
    assert [found.cid_of(chunk_no) for chunk_no in range(len(found))] == CIDS
    assert [found.is_zero(chunk_no) for chunk_no in range(4)] == [False, True, False, False]


GOLDEN_IMAGE = (b"acstor one\n" * 1490)[:16384] + bytes(16384) + (b"acstor two\n" * 91)[:1000]


def test_golden_file_of_version_4_is_read_and_written_alike() -> None:
    image = GOLDEN_IMAGE
    chunks = [image[:16384], image[16384:32768], image[32768:]]
    cids = [ids.cid_of(chunks[0]), ids.ZERO_CID, ids.cid_of(chunks[2])]
    os_hash = chunk_map.OsHash("sha512", hashlib.sha512(image).digest())
    raw = GOLDEN.read_bytes()
    assert raw == build(geometry.Geometry(33768, 16384), cids, os_hash)
    found = chunk_map.ChunkMap.parse(raw, "golden", expected_image_id=IMAGE_ID)
    assert [found.cid_of(chunk_no) for chunk_no in range(3)] == cids


def test_golden_file_with_scope_keys_is_read_and_written_alike() -> None:
    cids = [ids.cid_of(GOLDEN_IMAGE[:16384], KEYS[1]), ids.ZERO_CID]
    cids.append(ids.cid_of(GOLDEN_IMAGE[32768:], KEYS[0]))
    os_hash = chunk_map.OsHash("sha512", hashlib.sha512(GOLDEN_IMAGE).digest())
    raw = GOLDEN.with_name("chunk_map-v4-keyed.acmap").read_bytes()
    assert raw == build(geometry.Geometry(33768, 16384), cids, os_hash, KEYS)
    found = chunk_map.ChunkMap.parse(raw, "golden", expected_image_id=IMAGE_ID)
    assert found.scope_keys == KEYS
    assert found.content_of(0).matches_data(GOLDEN_IMAGE[:16384])  # of an inherited scope
    assert found.content_of(2).matches_data(GOLDEN_IMAGE[32768:])
    assert not found.content_of(2).matches_data(GOLDEN_IMAGE[:16384])


def test_keyed_cid_in_a_map_without_keys_is_refused_with_its_offset() -> None:
    cids = [*CIDS[:3], ids.cid_of(b"a", KEYS[0])]
    fault = refusal(build(cids=cids))
    assert fault.offset == AT_CIDS + 3 * ids.CID_BYTES and "keyed" in fault.why
    assert chunk_map.ChunkMap.parse(build(cids=cids, scope_keys=KEYS[:1]), "m").cid_of(3) == cids[3]


@pytest.mark.parametrize(
    ("at", "fmt", "value", "words"),
    [
        (130, "H", 9, "9 scope keys are too many"),
        (130, "H", 0xFFFF, "65535 scope keys are too many"),
        (130, "H", 3, "a scope key is invalid"),  # the third one is all zeros
        (130, "H", 1, "after the last"),
        (192, "32s", KEYS[0], "twice"),
        (415, "B", 1, "after the last"),
    ],
)
def test_invalid_scope_keys_in_a_map_are_refused(
    at: int, fmt: str, value: object, words: str
) -> None:
    fault = refusal(forge(build(scope_keys=KEYS), at, fmt, value))
    assert words in fault.why and fault.offset in (130, 160)


@pytest.mark.parametrize(
    "keys",
    [
        tuple(ids.ScopeKey(bytes([n]) * 32) for n in range(1, 10)),
        (ids.ScopeKey(b"short"),),
        (ids.ScopeKey(bytes(32)),),
        (KEYS[0], KEYS[0]),
    ],
)
def test_invalid_scope_keys_are_not_written(keys: chunk_map.ScopeKeys) -> None:
    with pytest.raises(ValueError, match="scope key"):
        build(scope_keys=keys)


@pytest.mark.parametrize("count", [1, 8, 255, 256, 257, 1030])
def test_chunks_with_data_are_listed(count: int) -> None:
    numbers = {n for n in (0, 7, 8, 254, 256, 700, 1029) if n < count}
    cids = [ids.cid_of(b"a") if n in numbers else ids.ZERO_CID for n in range(count)]
    cut = geometry.Geometry(count * 65536, 65536)
    found = chunk_map.ChunkMap.parse(build(cut, cids), "m")
    assert list(found.iter_data()) == sorted(numbers)
    zeros = chunk_map.ChunkMap.parse(build(cut, [ids.ZERO_CID] * count), "m")
    assert list(zeros.iter_data()) == []


def test_map_of_an_empty_image_is_refused() -> None:
    with pytest.raises(ValueError, match="the image is empty"):
        build(geometry.Geometry(0, 65536), [])
    fault = refusal(forge(build(), 16, "QQ", 0, 0))  # bytes and chunks
    assert fault.why == "the image is empty"


@pytest.mark.parametrize("chunk_no", [-1, 4])
def test_chunk_outside_the_image_is_refused(chunk_no: int) -> None:
    with pytest.raises(IndexError, match=IMAGE_ID):
        chunk_map.ChunkMap.parse(build(), "m").cid_of(chunk_no)


@pytest.mark.parametrize(("first", "stop"), [(-1, 1), (0, 5), (3, 2)])
def test_chunk_range_outside_the_image_is_refused(first: int, stop: int) -> None:
    with pytest.raises(IndexError, match=IMAGE_ID):
        chunk_map.ChunkMap.parse(build(), "m").cids_between(first, stop)


def test_mapped_file_is_read_in_place(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "m.acmap"
    path.write_bytes(build())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        with memoryview(mapped) as view:
            found = chunk_map.ChunkMap.parse(view, str(path))
            assert found.cid_of(2) == CIDS[2] and type(found.cid_of(2)) is bytes
            del found


@hypothesis.given(
    size_bytes=strategies.integers(1, 40 * 16384),
    chunk_bytes=strategies.sampled_from([16384, 65536, 4 << 20]),
    seed=strategies.binary(max_size=8),
    os_hash=strategies.one_of(
        strategies.just(chunk_map.UNKNOWN_OS_HASH),
        strategies.builds(
            chunk_map.OsHash,
            strategies.from_regex(r"[a-z0-9_]{1,16}", fullmatch=True),
            strategies.binary(min_size=1, max_size=64),
        ),
    ),
)
def test_map_round_trips(
    size_bytes: int, chunk_bytes: int, seed: bytes, os_hash: chunk_map.OsHash
) -> None:
    cut = geometry.Geometry(size_bytes, chunk_bytes)
    cids = [ids.cid_of(seed + bytes([chunk_no])) for chunk_no in range(cut.chunk_count)]
    raw = build(cut, cids, os_hash)
    found = chunk_map.ChunkMap.parse(raw, "m")
    assert (
        len(raw) == chunk_map_header.sections(cut, layout.raw_file(size_bytes), found.tables).stop
    )
    assert (found.geometry, found.os_hash_algo, found.os_hash_value) == (cut, *os_hash)
    assert [found.cid_of(chunk_no) for chunk_no in range(len(found))] == cids
    for first in {0, 1, len(cids) // 2, len(cids)} & set(range(len(cids) + 1)):
        assert found.cids_between(first, len(cids)) == cids[first:]
        assert found.cids_between(0, first) == cids[:first]


def test_flipped_byte_is_detected() -> None:
    raw = build()
    for at in (*range(AT_CIDS + 4 * ids.CID_BYTES), *range(AT_CIDS + 300, len(raw), 97)):
        refusal(raw[:at] + bytes([raw[at] ^ 0x40]) + raw[at + 1 :])


def test_truncation_is_detected_by_the_length() -> None:
    raw = build()
    for length in (*range(1000), *range(1000, len(raw), 97)):
        assert "truncated" in (fault := refusal(raw[:length])).why or not length
        assert fault.offset <= length


@hypothesis.given(strategies.binary(max_size=700))
def test_random_bytes_are_not_a_chunk_map(rubbish: bytes) -> None:
    refusal(rubbish)
    refusal(chunk_map_header.MAGIC + rubbish)


def test_map_with_trailing_bytes_is_refused() -> None:
    assert f"too long: {LENGTH + 1} bytes instead of {LENGTH}" in str(refusal(build() + b"\0"))


def test_foreign_file_is_distinguished_from_a_damaged_map() -> None:
    assert str(refusal(b"QFI\xfb" + bytes(500))) == "the map: byte 0: not a chunk map"
    assert str(refusal(b"")) == "the map: byte 0: not a chunk map"
    assert "header's checksum" in str(refusal(build()[:20] + b"\xff" + build()[21:]))
    assert "the map's checksum" in str(refusal(build()[:-1] + b"\xff"))


def test_damaged_cid_is_detected_by_the_trailer() -> None:
    raw = build()
    damaged = raw[: AT_CIDS + 8] + b"\xff" + raw[AT_CIDS + 9 :]
    assert "the map's checksum" in str(refusal(damaged))


@pytest.mark.parametrize(
    ("at", "fmt", "value", "offset", "why"),
    [
        (8, "H", 3, 8, "format version 3 is not known"),
        (10, "H", 2, 10, "CID algorithm 2 is not known"),
        (12, "I", 65537, 12, "chunks of 65537 bytes are not allowed"),
        (12, "I", 0, 12, "chunks of 0 bytes are not allowed"),
        (24, "Q", 5, 24, "5 chunks do not fit an image of 196708 bytes"),
        (132, "H", 0, 132, "disk format 0 is not known"),
        (132, "H", 3, 132, "disk format 3 is not known"),
        (132, "H", 2, LENGTH, f"truncated: {LENGTH} of {LENGTH + 16} bytes"),
        (152, "I", 0, 152, "0 blocks do not fit 1 pages"),
        (152, "I", 2, 152, "2 blocks do not fit 1 pages"),
        (156, "I", 5, 156, "5 contents do not fit 4 chunks"),
        (156, "I", 3, LENGTH, f"truncated: {LENGTH} of {LENGTH + 8} bytes"),
        (448, "I", 1, 448, "there is no block 1"),
        (AT_FIRSTS + 4, "I", 4, AT_FIRSTS + 4, "there is no chunk 4"),
        (136, "Q", 196707, 136, "196707 bytes and 0 extents are not a raw image"),
        (144, "Q", 1, 136, "196708 bytes and 1 extents are not a raw image"),
        (16, "Q", 2**64 - 1, 24, "4 chunks do not fit an image of 18446744073709551615 bytes"),
        (48, "16s", b"sha512\xff", 48, "not the name of a hash algorithm"),
        (48, "16s", b"", 48, "needs both an algorithm and a value"),
        (128, "H", 65, 128, "an image hash of 65 bytes is too long"),
        (128, "H", 0, 48, "needs both an algorithm and a value"),
    ],
)
def test_forged_field_is_refused_with_its_offset(
    at: int, fmt: str, value: int | bytes, offset: int, why: str
) -> None:
    fault = refusal(forge(build(), at, fmt, value))
    assert why in fault.why
    assert fault.offset == offset


def test_map_of_another_image_is_refused() -> None:
    fault = refusal(build(), expected_image_id=OTHER_ID)
    assert fault.why == f"map of image {IMAGE_ID}, not of {OTHER_ID}"
    fault = refusal(build(), expected_stored_bytes=100)
    assert fault.why == "map of a stored file of 196708 bytes, not of 100"


@pytest.mark.parametrize(
    "os_hash", [("", b"x"), ("sha512", b""), ("sha 512", b"x"), ("a", b"x" * 65)]
)
def test_image_hash_that_does_not_fit_the_header_is_refused(os_hash: tuple[str, bytes]) -> None:
    with pytest.raises(ValueError, match="hash"):
        build(os_hash=chunk_map.OsHash(*os_hash))


def test_builder_refuses_to_finish_with_missing_cids() -> None:
    with pytest.raises(errors.LocalProtocolError, match="96 bytes of CIDs missing"):
        build(cids=CIDS[:1])


# Images that are not raw

BIG = geometry.Geometry(256 * 16384 + 1000, 16384)
STORED = layout.StoredFile(layout.DiskFormat.QCOW2, 393216, 5)
EXTENTS = [
    layout.Extent(0, 4096, layout.Codec.DEFLATE, 327680, 90),
    layout.Extent(4096, 4096, layout.Codec.ZSTD, 327770, 80),
    layout.Extent(8192, 8192, layout.Codec.STORED, 65536, 8192),
    layout.Extent(255 * 16384, 16384, layout.Codec.STORED, 131072, 16384),
    layout.Extent(256 * 16384, 1000, layout.Codec.STORED, 147456, 1000),
]
TABLES = chunk_map.Tables(blocks=2, contents=2)
AT_ENTRIES = chunk_map_header.sections(BIG, STORED, TABLES).entries_at
BIG_LENGTH = chunk_map_header.sections(BIG, STORED, TABLES).stop


def build_qcow2(os_hash: chunk_map.OsHash = OS_HASH) -> bytes:
    text, short = ids.cid_of(GOLDEN_IMAGE[:16384]), ids.cid_of(GOLDEN_IMAGE[32768:])
    cids = [text + bytes(254 * ids.CID_BYTES), text + short]
    entries = map(layout.pack, EXTENTS)
    return chunk_maps.made(IMAGE_ID, BIG, cids, os_hash, stored=STORED, entries=entries)


def test_golden_file_with_a_layout_is_read_and_written_alike() -> None:
    raw = GOLDEN.with_name("chunk_map-v4-qcow2.acmap").read_bytes()
    os_hash = chunk_map.OsHash("sha512", hashlib.sha512(b"stored").digest())
    assert raw == build_qcow2(os_hash)
    assert len(raw) == BIG_LENGTH
    found = chunk_map.ChunkMap.parse(
        raw, "golden", expected_image_id=IMAGE_ID, expected_stored_bytes=393216
    )
    assert found.layout.stored == found.subject.stored == STORED
    assert found.layout.find(0, BIG.size_bytes) == EXTENTS


def test_map_for_another_stored_length_is_refused() -> None:
    fault = refusal(build_qcow2(), expected_stored_bytes=BIG.size_bytes)
    assert (fault.offset, fault.why) == (
        136,
        "map of a stored file of 393216 bytes, not of 4195304",
    )


def test_flipped_byte_of_a_layout_is_detected() -> None:
    raw = build_qcow2()
    for at in range(AT_ENTRIES, len(raw), 7):
        refusal(raw[:at] + bytes([raw[at] ^ 0x40]) + raw[at + 1 :])


@pytest.mark.parametrize(
    ("at", "fmt", "value", "offset", "why"),
    [
        (136, "Q", 2**56 + 1, 136, f"a stored file of {2**56 + 1} bytes is too long"),
        (136, "Q", 327849, AT_ENTRIES + 24, "beyond the end of the stored file"),
        (144, "Q", 2**64 - 1, BIG_LENGTH, f"truncated: {BIG_LENGTH} of"),
        (144, "Q", 4, BIG_LENGTH - 24, f"too long: {BIG_LENGTH} bytes"),
        (AT_ENTRIES + 24, "Q", 4095, AT_ENTRIES + 24, "is not between 4096 and 4194304"),
        (AT_ENTRIES + 24, "Q", 2**64 - 1, AT_ENTRIES + 24, "is not between"),
        (AT_ENTRIES + 8, "Q", 3 << 56, AT_ENTRIES, "codec 3 is not known"),
        (AT_ENTRIES + 16, "I", 0, AT_ENTRIES, "extent of bytes 0 to 0"),
        (AT_ENTRIES + 16, "I", (2 << 20) + 1, AT_ENTRIES, "2097153 bytes is compressed to 90"),
        (AT_ENTRIES + 20, "I", 0, AT_ENTRIES, "is compressed to 0"),
        (AT_ENTRIES + 20, "I", (4 << 20) + 1, AT_ENTRIES, "is compressed to 4194305"),
        (AT_ENTRIES + 48 + 20, "I", 8191, AT_ENTRIES + 48, "of 8192 bytes is stored in 8191"),
        (AT_ENTRIES + 72 + 16, "II", 16385, AT_ENTRIES + 72, "is not between"),  # two pages
        (
            AT_ENTRIES + 96 + 16,
            "II",
            1001,
            AT_ENTRIES + 96,
            "is not between",
        ),  # past the end of the image
        (AT_ENTRIES + 120, "Q", 1, AT_ENTRIES + 120, "the index"),
        (AT_ENTRIES + 128, "Q", 3, AT_ENTRIES + 72, "is not between"),
        (AT_ENTRIES + 128, "Q", 6, AT_ENTRIES + 120, "the index"),
        (AT_ENTRIES + 136, "Q", 6, AT_ENTRIES + 120, "the index"),
    ],
)
def test_forged_layout_is_refused_with_its_offset(
    at: int, fmt: str, value: int, offset: int, why: str
) -> None:
    values = (value, value) if fmt == "II" else (value,)
    fault = refusal(forge(build_qcow2(), at, fmt, *values))
    assert why in fault.why
    assert fault.offset == offset


def test_builder_refuses_to_finish_with_missing_entries() -> None:
    cut, entries = geometry.Geometry(1, 65536), [layout.pack(EXTENTS[0])]
    with pytest.raises(errors.LocalProtocolError, match="4 entries missing"):
        chunk_maps.made(IMAGE_ID, cut, CIDS[:1], stored=STORED, entries=entries)


@pytest.mark.parametrize("build_one", [build, build_qcow2])
def test_map_is_rewritten_with_the_hash_of_its_image(build_one: Callable[..., bytes]) -> None:
    waiting = build_one(os_hash=chunk_map.UNKNOWN_OS_HASH)
    found = chunk_map.ChunkMap.parse(waiting, "m")
    bound = b"".join(chunk_map_writer.with_os_hash(found, memoryview(waiting), OS_HASH))
    assert bound == build_one(os_hash=OS_HASH)
