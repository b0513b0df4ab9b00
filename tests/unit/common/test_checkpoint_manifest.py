# SPDX-License-Identifier: Apache-2.0
"""Checkpoint manifests: each field is validated."""

import itertools
import pathlib
import struct

import hypothesis
import pytest
from hypothesis import strategies

from acstor_common import errors
from acstor_common.formats import checkpoint_encryption
from acstor_common.formats import checkpoint_manifest
from acstor_common.formats import chunk_map
from acstor_common.model import geometry
from acstor_common.model import ids

GOLDEN = pathlib.Path(__file__).parents[2] / "data" / "checkpoint-v1.ackpt"
SEAL = checkpoint_encryption.Seal(bytes(range(32)))
CHUNK = (b"what a guest wrote\n" * 3450)[:65536]
ENTRIES = [
    checkpoint_manifest.Entry(0, SEAL.chunk_name(CHUNK)),
    checkpoint_manifest.Entry(3, ids.ZERO_CID),
    checkpoint_manifest.Entry(4, SEAL.chunk_name(b"the short last chunk")),
]
SUBJECT = checkpoint_manifest.Subject(
    ids.parse_image_id("0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e21"),
    ids.parse_image_id("5a0c0b32-96c1-4b39-a1a5-0b51d0f4a1b2"),
    "8f2b4f0e8d575d1f0c2a7e210b9d4a5e",
    ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"),
    chunk_map.OsHash("sha256", bytes(range(32))),
    geometry.Geometry(4 * 65536 + 20, 65536),
    1_795_000_000_123,
    checkpoint_manifest.Consistency.FILESYSTEM,
    7,
)
RAW = checkpoint_manifest.build(SUBJECT, ENTRIES)


def refusal(raw: bytes) -> str:
    with pytest.raises(errors.CheckpointFormatError) as caught:
        checkpoint_manifest.Manifest.parse(raw, "the manifest")
    assert caught.value.what == "the manifest"
    return caught.value.why


def forged(at: int, fmt: str, *values: object, raw: bytes = RAW) -> bytes:
    altered = bytearray(raw)
    struct.pack_into("<" + fmt, altered, at, *values)
    return bytes(altered)


def test_manifest_round_trips() -> None:
    found = checkpoint_manifest.Manifest.parse(RAW, "m")
    assert (found.subject, list(found), len(found)) == (SUBJECT, ENTRIES, 3)
    assert list(found.iter_names()) == sorted([ENTRIES[0].cid, ENTRIES[2].cid])


def test_golden_file_is_read_and_written() -> None:
    sealed = GOLDEN.read_bytes()
    raw = SEAL.open_manifest(sealed[: -len(SEAL.close(ENTRIES[0].cid, CHUNK))], 1 << 20)
    found = checkpoint_manifest.Manifest.parse(raw, "golden")
    assert (found.subject, list(found)) == (SUBJECT, ENTRIES)
    assert (
        SEAL.close_manifest(bytearray(RAW)) == sealed[: len(RAW) + checkpoint_encryption.SEAL_BYTES]
    )


def test_golden_chunk_is_decrypted() -> None:
    sealed = GOLDEN.read_bytes()[len(RAW) + checkpoint_encryption.SEAL_BYTES :]
    assert SEAL.open(ENTRIES[0].cid, sealed, len(CHUNK), "golden") == CHUNK


def test_checkpoint_without_changes_is_valid() -> None:
    found = checkpoint_manifest.Manifest.parse(checkpoint_manifest.build(SUBJECT, []), "m")
    assert (len(found), list(found), list(found.iter_names())) == (0, [], []) and found


@hypothesis.given(strategies.sets(strategies.integers(0, 9999), max_size=50))
def test_manifest_may_list_any_chunks_of_a_disk(numbers: set[int]) -> None:
    subject = SUBJECT._replace(cut=geometry.Geometry(10_000 * 65536, 65536))
    entries = [checkpoint_manifest.Entry(n, SEAL.chunk_name(b"%d" % n)) for n in sorted(numbers)]
    raw = checkpoint_manifest.build(subject, entries)
    assert list(checkpoint_manifest.Manifest.parse(raw, "m")) == entries


@hypothesis.given(strategies.binary(max_size=400))
def test_random_bytes_are_refused(raw: bytes) -> None:
    refusal(raw)
    refusal(checkpoint_manifest.MAGIC + raw)


@hypothesis.given(strategies.integers(0, len(RAW) - 1), strategies.integers(1, 255))
def test_altered_byte_raises_only_a_format_error(at: int, change: int) -> None:
    try:
        checkpoint_manifest.Manifest.parse(forged(at, "B", RAW[at] ^ change), "m")
    except errors.CheckpointFormatError:
        pass


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (RAW[:100], "truncated"),
        (RAW[:-1], "do not fit"),
        (RAW + b"\0", "do not fit"),
        (forged(8, "H", 2), "version 2"),
        (forged(10, "B", 3), "Consistency"),
        (forged(12, "I", 65537), "an image cannot be divided"),
        (forged(16, "Q", 0), "cannot have checkpoints"),
        (forged(16, "Q", 1 << 63), "cannot have checkpoints"),
        (forged(16, "Q", 65536), "no chunk 4"),
        (forged(24, "Q", 1 << 63), "out of range"),
        (forged(32, "Q", 0), "out of range"),
        (forged(40, "Q", 1 << 60), "do not fit"),
        (forged(96, "16s", b"sha 256"), "hash"),
        (forged(176, "H", 65535), "hash"),
        (forged(178, "H", 65535), "is not a project"),
        (forged(180, "2s", b"\xff\xff"), "utf-8"),
        (forged(180, "2s", b"a\n"), "is not a project"),
        (forged(256 + 40, "Q", 0), "is listed after"),
        (forged(256 + 39, "B", 0), "not keyed"),
    ],
)
def test_invalid_fields_are_refused(raw: bytes, why: str) -> None:
    assert why in refusal(raw)


def test_too_many_entries_are_refused() -> None:
    with pytest.raises(errors.CheckpointFormatError, match="do not fit"):
        checkpoint_manifest.Manifest.parse(RAW, "m", max_entries=2)
    with pytest.raises(ValueError, match="more than 2 chunks"):
        checkpoint_manifest.build(SUBJECT, ENTRIES, max_entries=2)


@pytest.mark.parametrize(
    "entries", [ENTRIES[::-1], [ENTRIES[0]] * 2, [checkpoint_manifest.Entry(5, ENTRIES[0].cid)]]
)
def test_entries_out_of_order_are_not_written(entries: list[checkpoint_manifest.Entry]) -> None:
    with pytest.raises(ValueError, match="chunk"):
        checkpoint_manifest.build(SUBJECT, entries)


def test_unkeyed_name_is_not_written() -> None:
    plain = checkpoint_manifest.Entry(0, ids.cid_of(b"bytes"))
    with pytest.raises(ValueError, match="not keyed"):
        checkpoint_manifest.build(SUBJECT, [plain])


def test_names_are_iterated_in_order_without_duplicates() -> None:
    cids = [ids.cid_of(bytes([n % 100]), SEAL.scope_key) for n in range(150)] + [ids.ZERO_CID]
    cut = geometry.Geometry(1 << 30, geometry.DEFAULT_CHUNK_BYTES)
    entries = itertools.starmap(checkpoint_manifest.Entry, enumerate(cids))
    raw = checkpoint_manifest.build(SUBJECT._replace(cut=cut), entries)
    found = checkpoint_manifest.Manifest.parse(raw, "m")
    assert list(found.iter_names(names_at_once=7)) == sorted(set(cids) - {ids.ZERO_CID})
