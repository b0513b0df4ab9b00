# SPDX-License-Identifier: Apache-2.0
"""A chunk map is believed only when every byte of it is right."""

import hashlib
import mmap
import pathlib
import struct

import blake3
import hypothesis
import pytest
from hypothesis import strategies

from acstor_common import chunk_map
from acstor_common import errors
from acstor_common import geometry
from acstor_common import ids

IMAGE_ID = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
OTHER_ID = ids.parse_image_id("00000000-0000-4000-8000-000000000001")
GOLDEN = pathlib.Path(__file__).parents[2] / "data" / "chunk_map-v2.acmap"
CUT = geometry.Geometry(size_bytes=3 * 65536 + 100, chunk_bytes=65536)
CIDS = [ids.cid_of(b"a"), ids.ZERO_CID, ids.cid_of(b"b"), ids.cid_of(b"a")]
OS_HASH = chunk_map.OsHash("sha512", hashlib.sha512(b"image").digest())
KEYS = (ids.ScopeKey(bytes(range(1, 33))), ids.ScopeKey(bytes(range(33, 65))))


def build(
    cut: geometry.Geometry = CUT,
    cids: list[ids.Cid] = CIDS,
    os_hash: chunk_map.OsHash = OS_HASH,
    scope_keys: chunk_map.ScopeKeys = (),
) -> bytes:
    builder = chunk_map.MapBuilder(IMAGE_ID, cut, os_hash, scope_keys)
    return builder.header + b"".join(builder.feed(cid) for cid in cids) + builder.trailer()


def forge(raw: bytes, at: int, fmt: str, *values: object) -> bytes:
    """Write a field and make both checksums right again, as an attacker would."""
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


def test_map_gives_back_what_was_put_in() -> None:
    found = chunk_map.ChunkMap.parse(
        build(), "m", expected_image_id=IMAGE_ID, expected_size_bytes=CUT.size_bytes
    )
    assert (found.image_id, found.geometry) == (IMAGE_ID, CUT)
    assert chunk_map.OsHash(found.os_hash_algo, found.os_hash_value) == OS_HASH
    assert [found.cid(chunk_no) for chunk_no in range(len(found))] == CIDS
    assert [found.is_zero(chunk_no) for chunk_no in range(4)] == [False, True, False, False]


GOLDEN_IMAGE = (b"acstor one\n" * 1490)[:16384] + bytes(16384) + (b"acstor two\n" * 91)[:1000]


def test_golden_file_of_version_2_is_read_and_written_alike() -> None:
    image = GOLDEN_IMAGE
    chunks = [image[:16384], image[16384:32768], image[32768:]]
    cids = [ids.cid_of(chunks[0]), ids.ZERO_CID, ids.cid_of(chunks[2])]
    os_hash = chunk_map.OsHash("sha512", hashlib.sha512(image).digest())
    raw = GOLDEN.read_bytes()
    assert raw == build(geometry.Geometry(33768, 16384), cids, os_hash)
    found = chunk_map.ChunkMap.parse(raw, "golden", expected_image_id=IMAGE_ID)
    assert [found.cid(chunk_no) for chunk_no in range(3)] == cids


def test_golden_file_with_scope_keys_is_read_and_written_alike() -> None:
    cids = [ids.cid_of(GOLDEN_IMAGE[:16384], KEYS[1]), ids.ZERO_CID]
    cids.append(ids.cid_of(GOLDEN_IMAGE[32768:], KEYS[0]))
    os_hash = chunk_map.OsHash("sha512", hashlib.sha512(GOLDEN_IMAGE).digest())
    raw = GOLDEN.with_name("chunk_map-v2-keyed.acmap").read_bytes()
    assert raw == build(geometry.Geometry(33768, 16384), cids, os_hash, KEYS)
    found = chunk_map.ChunkMap.parse(raw, "golden", expected_image_id=IMAGE_ID)
    assert found.scope_keys == KEYS
    assert found.content(0).matches(GOLDEN_IMAGE[:16384])  # of a scope that it inherited
    assert found.content(2).matches(GOLDEN_IMAGE[32768:])
    assert not found.content(2).matches(GOLDEN_IMAGE[:16384])


def test_keyed_cid_in_a_map_without_keys_is_refused_where_it_stands() -> None:
    cids = [*CIDS[:3], ids.cid_of(b"a", KEYS[0])]
    fault = refusal(build(cids=cids))
    assert fault.offset == chunk_map.HEADER_BYTES + 3 * ids.CID_BYTES and "keyed" in fault.why
    assert chunk_map.ChunkMap.parse(build(cids=cids, scope_keys=KEYS[:1]), "m").cid(3) == cids[3]


@pytest.mark.parametrize(
    ("at", "fmt", "value", "words"),
    [
        (130, "H", 9, "9 scope keys are too many"),
        (130, "H", 0xFFFF, "65535 scope keys are too many"),
        (130, "H", 3, "no key"),  # the third one is all zeros
        (130, "H", 1, "behind the last"),
        (192, "32s", KEYS[0], "twice"),
        (415, "B", 1, "behind the last"),
    ],
)
def test_scope_keys_that_no_map_has_are_refused(
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
def test_scope_keys_that_no_map_can_have_are_not_written(keys: chunk_map.ScopeKeys) -> None:
    with pytest.raises(ValueError, match="scope key"):
        build(scope_keys=keys)


def test_map_of_an_empty_image_has_no_chunks() -> None:
    raw = build(geometry.Geometry(0, 65536), [])
    assert len(raw) == chunk_map.HEADER_BYTES + chunk_map.TRAILER_BYTES
    assert len(chunk_map.ChunkMap.parse(raw, "m")) == 0


@pytest.mark.parametrize("chunk_no", [-1, 4])
def test_chunk_outside_of_the_image_is_refused(chunk_no: int) -> None:
    with pytest.raises(IndexError, match=IMAGE_ID):
        chunk_map.ChunkMap.parse(build(), "m").cid(chunk_no)


def test_mapped_file_is_read_in_place(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "m.acmap"
    path.write_bytes(build())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        with memoryview(mapped) as view:
            found = chunk_map.ChunkMap.parse(view, str(path))
            assert found.cid(2) == CIDS[2] and type(found.cid(2)) is bytes
            del found


@hypothesis.given(
    size_bytes=strategies.integers(0, 40 * 16384),
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
def test_every_map_survives_the_round_trip(
    size_bytes: int, chunk_bytes: int, seed: bytes, os_hash: chunk_map.OsHash
) -> None:
    cut = geometry.Geometry(size_bytes, chunk_bytes)
    cids = [ids.cid_of(seed + bytes([chunk_no])) for chunk_no in range(cut.chunk_count)]
    raw = build(cut, cids, os_hash)
    assert len(raw) == chunk_map.length_bytes(cut)
    found = chunk_map.ChunkMap.parse(raw, "m")
    assert (found.geometry, found.os_hash_algo, found.os_hash_value) == (cut, *os_hash)
    assert [found.cid(chunk_no) for chunk_no in range(len(found))] == cids


def test_any_flipped_byte_is_noticed() -> None:
    raw = build()
    for at in range(len(raw)):
        refusal(raw[:at] + bytes([raw[at] ^ 0x40]) + raw[at + 1 :])


def test_every_truncation_is_noticed_even_without_the_trailer() -> None:
    raw = build()
    for length in range(len(raw)):
        assert refusal(raw[:length], check_trailer=False).offset <= length


@hypothesis.given(strategies.binary(max_size=700))
def test_rubbish_is_not_a_chunk_map(rubbish: bytes) -> None:
    refusal(rubbish)
    refusal(chunk_map.MAGIC + rubbish)


def test_too_long_map_is_refused() -> None:
    assert "too long: 609 bytes instead of 608" in str(refusal(build() + b"\0"))


def test_foreign_file_is_told_from_a_damaged_map() -> None:
    assert str(refusal(b"QFI\xfb" + bytes(500))) == "the map: byte 0: not a chunk map"
    assert str(refusal(b"")) == "the map: byte 0: not a chunk map"
    assert "header's checksum" in str(refusal(build()[:20] + b"\xff" + build()[21:]))
    assert "the map's checksum" in str(refusal(build()[:-1] + b"\xff"))


def test_damaged_cid_is_left_to_the_trailer() -> None:
    raw = build()
    damaged = raw[:456] + b"\xff" + raw[457:]
    assert "the map's checksum" in str(refusal(damaged))
    chunk_map.ChunkMap.parse(damaged, "checked before", check_trailer=False)


@pytest.mark.parametrize(
    ("at", "fmt", "value", "offset", "why"),
    [
        (8, "H", 1, 8, "format version 1 is not known"),
        (10, "H", 2, 10, "CID algorithm 2 is not known"),
        (12, "I", 65537, 12, "chunks of 65537 bytes are not allowed"),
        (12, "I", 0, 12, "chunks of 0 bytes are not allowed"),
        (24, "Q", 5, 24, "5 chunks do not fit an image of 196708 bytes"),
        (16, "Q", 2**64 - 1, 24, "4 chunks do not fit an image of 18446744073709551615 bytes"),
        (48, "16s", b"sha512\xff", 48, "not the name of a hash algorithm"),
        (48, "16s", b"", 48, "needs both an algorithm and a value"),
        (128, "H", 65, 128, "an image hash of 65 bytes is too long"),
        (128, "H", 0, 48, "needs both an algorithm and a value"),
    ],
)
def test_forged_field_is_named(
    at: int, fmt: str, value: int | bytes, offset: int, why: str
) -> None:
    fault = refusal(forge(build(), at, fmt, value))
    assert why in fault.why
    assert fault.offset == offset


def test_map_of_another_image_is_refused() -> None:
    fault = refusal(build(), expected_image_id=OTHER_ID)
    assert fault.why == f"map of image {IMAGE_ID}, not of {OTHER_ID}"
    fault = refusal(build(), expected_size_bytes=100)
    assert fault.why == "map of an image of 196708 bytes, not of 100"


@pytest.mark.parametrize(
    "os_hash", [("", b"x"), ("sha512", b""), ("sha 512", b"x"), ("a", b"x" * 65)]
)
def test_image_hash_that_no_header_can_hold_is_refused(os_hash: tuple[str, bytes]) -> None:
    with pytest.raises(ValueError, match="hash"):
        chunk_map.header_bytes(IMAGE_ID, CUT, chunk_map.OsHash(*os_hash))


def test_builder_does_not_end_a_map_with_cids_missing() -> None:
    builder = chunk_map.MapBuilder(IMAGE_ID, CUT)
    builder.feed(CIDS[0])
    with pytest.raises(errors.LocalProtocolError, match="96 bytes of CIDs missing"):
        builder.trailer()
