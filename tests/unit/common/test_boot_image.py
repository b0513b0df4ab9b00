# SPDX-License-Identifier: Apache-2.0
"""Boot images: every part is verified before use."""

import dataclasses
import hashlib
import pathlib
import random
import struct

import blake3
import hypothesis
import pytest
import zstandard
from hypothesis import strategies

from acstor_common import errors
from acstor_common.formats import boot_frames
from acstor_common.formats import boot_image
from acstor_common.formats import chunk_map
from acstor_common.model import geometry
from acstor_common.model import ids

IMAGE_ID = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
OTHER_ID = ids.parse_image_id("00000000-0000-4000-8000-000000000001")
GOLDEN = pathlib.Path(__file__).parents[2] / "data" / "boot_image-v3.acboot"
CHUNK = 16 * geometry.KIB
CUT = geometry.Geometry(size_bytes=6 * CHUNK + 100, chunk_bytes=CHUNK)
OS_HASH = chunk_map.OsHash("sha512", hashlib.sha512(b"image").digest())
OF = boot_image.Binding(IMAGE_ID, CUT, OS_HASH)
AT_TRACE = boot_image.HEADER_BYTES


def text(chunk_no: int, length: int = CHUNK) -> bytes:
    return (b"chunk %d of an image\n" % chunk_no * CHUNK)[:length]


CHUNKS = {
    0: text(0),
    1: random.Random(1).randbytes(CHUNK),
    2: bytes(CHUNK),
    3: random.Random(2).randbytes(CHUNK),
    4: text(0),
    5: text(5),
    6: text(6, 100),
}


def build(
    trace: tuple[int, ...] = (5, 0, 1, 3, 6), of: boot_image.Binding = OF, frame_chunks: int = 2
) -> bytes:
    writer = boot_image.Writer(of, revision=7, frame_bytes=frame_chunks * of.cut.chunk_bytes)
    for chunk_no in trace:
        writer.add(chunk_no, CHUNKS[chunk_no])
    return b"".join(writer.iter_parts())


def forge(raw: bytes, at: int, fmt: str, *values: object) -> bytes:
    """Write a field and recompute both checksums, as an attacker would."""
    forged = bytearray(raw)
    head_bytes = boot_image.parse_header(raw, "good").head_bytes
    struct.pack_into("<" + fmt, forged, at, *values)
    forged[160:192] = blake3.blake3(forged[:160]).digest()
    forged[head_bytes - 32 : head_bytes] = blake3.blake3(forged[: head_bytes - 32]).digest()
    return bytes(forged)


def refusal(raw: bytes) -> errors.BootImageFormatError:
    with pytest.raises(errors.BootImageFormatError) as caught:
        boot_frames.check_boot_image([raw], "it")
    assert caught.value.what == "it"
    return caught.value


def unpacked(raw: bytes) -> list[tuple[int, bytes]]:
    head = boot_image.parse_head(raw, "it")
    found = []
    for frame in head.frames:
        stored = raw[frame.offset : frame.offset + frame.stored_bytes]
        cut = head.header.binding.cut
        found += [
            (n, bytes(data)) for n, data in boot_frames.unpack_frame(cut, frame, stored, "it")
        ]
    return found


def test_boot_image_returns_chunks_in_order_of_first_read() -> None:
    raw = build()
    head = boot_frames.check_boot_image([raw[:100], raw[100:]], "it")
    assert head.header == boot_image.Header(OF, 7, chunk_count=5, frame_chunks=2, profile_count=0)
    assert list(head.trace) == [5, 0, 1, 3, 6]
    assert head.size_bytes == len(raw)
    assert head.raw_bytes == 4 * CHUNK + 100
    assert unpacked(raw) == [(n, CHUNKS[n]) for n in (5, 0, 1, 3, 6)]


def build_with_profiles(*profiles: tuple[bytes, tuple[int, ...]]) -> bytes:
    """Build a boot image of chunks 5, 0 and 1 for all boots, in frames of two chunks."""
    writer = boot_image.Writer(OF, revision=7, frame_bytes=2 * CHUNK)
    for chunk_no in (5, 0, 1):
        writer.add(chunk_no, CHUNKS[chunk_no])
    for key, chunk_nos in profiles:
        for chunk_no in chunk_nos:
            writer.add(chunk_no, CHUNKS[chunk_no], ids.ProfileKey(key))
    return b"".join(writer.iter_parts())


DB, WEB = ids.profile_key_of("db"), ids.profile_key_of("web")


def test_frames_of_profiles_are_added_to_those_of_all_boots() -> None:
    raw = build_with_profiles((DB, (3,)), (WEB, (6, 4)))
    head = boot_frames.check_boot_image([raw], "it")
    assert list(head.trace) == [5, 0, 1, 3, 6]  # chunk 4 has the data of chunk 0
    assert head.profiled_trace == ((5, 0, 1), {DB: (3,), WEB: (6,)})
    numbers = [
        [frame.number for frame in head.frames_of(profiles)]
        for profiles in ((), (DB,), (WEB,), (DB, WEB), (ids.profile_key_of("unknown"),))
    ]
    assert numbers == [[0, 1], [0, 1], [0, 1, 2], [0, 1, 2], [0, 1]]


def test_two_profiles_can_have_the_same_chunk() -> None:
    raw = build_with_profiles((DB, (3, 6, 3)), (WEB, (6,)))
    head = boot_frames.check_boot_image([raw], "it")
    assert head.profiled_trace == ((5, 0, 1), {DB: (3, 6), WEB: (6,)})
    at = AT_TRACE + 4 * 4
    assert "a chunk is in the boot trace twice" in refusal(forge(raw, at, "I", 3)).why


def test_profile_that_has_ended_and_a_ninth_one_are_refused() -> None:
    cut = geometry.Geometry(20 * CHUNK, CHUNK)
    writer = boot_image.Writer(boot_image.Binding(IMAGE_ID, cut), revision=1)
    keys = [ids.profile_key_of(str(number)) for number in range(9)]
    for number, key in enumerate(keys[:8]):
        writer.add(number, text(number), key)
    for wrong in (keys[0], keys[8], ids.NO_PROFILE):
        with pytest.raises(ValueError, match="has ended, or is one too many"):
            writer.add(9, text(9), wrong)
    head = boot_image.parse_head(b"".join(writer.iter_parts()), "it")
    assert head.profiled_trace == ((), {key: (number,) for number, key in enumerate(keys[:8])})


def test_forged_profiles_are_refused() -> None:
    raw = build_with_profiles((DB, (3,)), (WEB, (6,)))
    at = boot_image.parse_header(raw, "it").head_bytes - 32 - 40
    for forged, offset, why in (
        (forge(raw, at + 16, "I", 5), at, "its profiles have more chunks than the boot trace"),
        (forge(raw, at + 20, "16s", DB), at, "a profile is in it twice"),
        (forge(raw, 136, "B", 9), 136, "9 profiles are too many"),
    ):
        fault = refusal(forged)
        assert (fault.offset, fault.why) == (offset, why)


def test_frames_are_read_separately_in_any_order() -> None:
    raw = build()
    head = boot_image.parse_head(raw[: boot_image.parse_header(raw, "it").head_bytes], "it")
    last = head.frames[-1]
    stored = raw[last.offset : last.offset + last.stored_bytes]
    assert [n for n, _ in boot_frames.unpack_frame(CUT, last, stored, "it")] == [6]


def test_zero_chunks_and_repeated_chunks_are_not_stored() -> None:
    assert build((2, 0, 2, 4, 0)) == build((0,))


def test_incompressible_bytes_are_stored_raw() -> None:
    frame = boot_image.parse_head(build((1, 3)), "it").frames[0]
    assert frame.stored_bytes == frame.raw_bytes == 2 * CHUNK


def test_empty_boot_image_is_legal() -> None:
    head = boot_frames.check_boot_image([build(())], "it")
    assert (list(head.trace), head.frames, head.size_bytes) == ([], (), 192 + 32)


def test_golden_file_of_version_3_is_read() -> None:
    raw = GOLDEN.read_bytes()
    head = boot_frames.check_boot_image([raw], "golden")
    assert head.header == boot_image.Header(OF, 7, chunk_count=4, frame_chunks=2, profile_count=1)
    assert head.profiled_trace == ((5, 0, 1), {ids.profile_key_of("database"): (3,)})
    assert unpacked(raw) == [(n, CHUNKS[n]) for n in (5, 0, 1, 3)]
    first, second = head.frames
    assert first.stored_bytes < first.raw_bytes and second.stored_bytes == second.raw_bytes


def test_frames_of_a_private_image_need_its_scope_key() -> None:
    key, other = ids.ScopeKey(b"k" * 32), ids.ScopeKey(b"o" * 32)
    writer = boot_image.Writer(OF, revision=7, key=key)
    for chunk_no in (5, 0, 1):
        writer.add(chunk_no, CHUNKS[chunk_no])
    raw = b"".join(writer.iter_parts())
    head = boot_frames.check_boot_image([raw], "it", (other, key))
    assert all(ids.is_keyed(frame.cid) for frame in head.frames)
    for keys in ((), (other,)):
        with pytest.raises(errors.BootImageFormatError, match="frame 0"):
            boot_frames.check_boot_image([raw], "it", keys)


def test_flipped_byte_is_detected() -> None:
    raw = build((5, 0, 6))
    for at in range(len(raw)):
        refusal(raw[:at] + bytes([raw[at] ^ 0x40]) + raw[at + 1 :])


def test_truncation_is_detected() -> None:
    raw = build((5, 0, 6))
    for length in range(len(raw)):
        assert refusal(raw[:length]).offset <= length


def test_boot_image_with_trailing_bytes_is_refused() -> None:
    raw = build()
    assert f"{len(raw)} bytes are expected" in str(refusal(raw + b"\0"))


@hypothesis.given(strategies.binary(max_size=400))
def test_random_bytes_are_not_a_boot_image(rubbish: bytes) -> None:
    refusal(rubbish)
    refusal(boot_image.MAGIC + rubbish)


@hypothesis.given(
    at=strategies.integers(0, 400), replaced=strategies.binary(min_size=1, max_size=12)
)
def test_forged_head_is_refused_or_has_valid_bounds(at: int, replaced: bytes) -> None:
    """A forged head with valid checksums is refused or has valid bounds."""
    raw = build()
    head_bytes = boot_image.parse_header(raw, "it").head_bytes
    forged = forge(raw, min(at, head_bytes - 32 - len(replaced)), f"{len(replaced)}s", replaced)
    try:
        head = boot_image.parse_head(forged, "it")
    except errors.BootImageFormatError:
        return
    assert len(list(head.trace)) == head.header.chunk_count <= head.header.binding.cut.chunk_count
    assert all(0 < frame.stored_bytes <= frame.raw_bytes <= 4 << 20 for frame in head.frames)


@hypothesis.given(
    chunk_nos=strategies.lists(strategies.integers(0, 40), max_size=30),
    frame_chunks=strategies.integers(1, 9),
    size_bytes=strategies.integers(40 * CHUNK + 1, 41 * CHUNK),
)
def test_boot_image_round_trips(chunk_nos: list[int], frame_chunks: int, size_bytes: int) -> None:
    cut = geometry.Geometry(size_bytes, CHUNK)
    writer = boot_image.Writer(boot_image.Binding(IMAGE_ID, cut), 1, frame_chunks * CHUNK)
    for chunk_no in chunk_nos:
        data = (b"%d," % chunk_no * CHUNK)[: cut.chunk_length(chunk_no)]
        writer.add(chunk_no, data)
    raw = b"".join(writer.iter_parts())
    head = boot_frames.check_boot_image([raw], "it")
    assert list(head.trace) == list(dict.fromkeys(chunk_nos))
    assert all(data.startswith(b"%d," % n) for n, data in unpacked(raw) if len(data) > 3)


@pytest.mark.parametrize(
    ("at", "fmt", "value", "offset", "why"),
    [
        (8, "H", 2, 8, "format version 2 is not known"),
        (10, "H", 2, 10, "compression 2 is not known"),
        (12, "I", 65537, 12, "chunks of 65537 bytes are not allowed"),
        (24, "I", 8, 24, "8 chunks are too many"),
        (24, "I", 2**32 - 1, 24, "4294967295 chunks are too many"),
        (28, "H", 0, 28, "0 chunks a frame are not allowed"),
        (28, "H", 257, 28, "257 chunks a frame are not allowed"),
        (48, "16s", b"sha512\xff", 48, "not the name of a hash algorithm"),
        (128, "H", 65, 48, "an image hash of 65 bytes is too long"),
        (128, "H", 0, 48, "needs both an algorithm and a value"),
        (AT_TRACE, "I", 7, AT_TRACE, "the image has no chunk 7"),
        (AT_TRACE, "I", 0, AT_TRACE, "a chunk is in the boot trace twice"),
        (AT_TRACE + 20, "I", 0, AT_TRACE + 20, "cannot be stored in 0"),
        (AT_TRACE + 20, "I", 2 * CHUNK + 1, AT_TRACE + 20, "cannot be stored in 32769"),
    ],
)
def test_forged_field_is_refused_with_its_offset(
    at: int, fmt: str, value: int | bytes, offset: int, why: str
) -> None:
    fault = refusal(forge(build(), at, fmt, value))
    assert why in fault.why
    assert fault.offset == offset


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (OF._replace(image_id=OTHER_ID), f"of image {IMAGE_ID}, not of {OTHER_ID}"),
        (OF._replace(cut=dataclasses.replace(CUT, size_bytes=100)), "of an image cut like"),
        (OF._replace(os_hash=chunk_map.OsHash("sha512", b"x")), "made for other bytes"),
    ],
)
def test_boot_image_of_another_image_is_refused(other: boot_image.Binding, why: str) -> None:
    header = boot_image.parse_header(build(), "it")
    boot_image.check_binding(header, OF, "it")
    boot_image.check_binding(header, OF._replace(os_hash=chunk_map.UNKNOWN_OS_HASH), "it")
    with pytest.raises(errors.BootImageFormatError, match=why):
        boot_image.check_binding(header, other, "it")


def frame_of(stored: bytes, raw_bytes: int) -> boot_image.Frame:
    return boot_image.Frame(0, (0,), 300, len(stored), raw_bytes, ids.cid_of(stored))


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        (zstandard.compress(bytes(1 << 30)), "decompresses to another length"),
        (zstandard.ZstdCompressor(write_content_size=False).compress(bytes(CHUNK)), "length"),
        (zstandard.compress(bytes(CHUNK)) + b"more", "frame 0: "),
        (zstandard.compress(text(0))[:-3], "frame 0: "),
        (b"not compressed at all", "frame 0: "),
    ],
)
def test_frame_that_does_not_decompress_to_its_chunks_is_refused(stored: bytes, why: str) -> None:
    with pytest.raises(errors.BootImageFormatError, match=why):
        boot_frames.unpack_frame(CUT, frame_of(stored, CHUNK), stored, "it")


@pytest.mark.parametrize(
    ("chunk_no", "length"), [(-1, CHUNK), (7, CHUNK), (0, CHUNK - 1), (6, CHUNK)]
)
def test_chunk_outside_the_image_is_not_written(chunk_no: int, length: int) -> None:
    with pytest.raises(ValueError, match="is not of this image"):
        boot_image.Writer(OF, 1).add(chunk_no, b"x" * length)
