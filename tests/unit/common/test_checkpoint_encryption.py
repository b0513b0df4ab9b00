# SPDX-License-Identifier: Apache-2.0
"""Sealed chunks and manifests: holders can neither read nor change them."""

import random

import hypothesis
import pytest
import zstandard
from hypothesis import strategies

from acstor_common import errors
from acstor_common.formats import checkpoint_encryption
from acstor_common.model import geometry
from acstor_common.model import ids

SEAL = checkpoint_encryption.Seal(bytes(range(32)))
OTHER = checkpoint_encryption.Seal(bytes(range(1, 33)))
CHUNK = b"what a guest wrote " * 3449
NAME = SEAL.chunk_name(CHUNK)
SEALED = SEAL.close(NAME, CHUNK)
RANDOM = random.Random(18).randbytes(geometry.DEFAULT_CHUNK_BYTES)


def refusal(sealed: bytes, name: ids.Cid = NAME, length: int = len(CHUNK)) -> str:
    with pytest.raises(errors.ChunkInvalid) as caught:
        SEAL.open(name, sealed, length, "a holder")
    assert caught.value.where == "a holder"
    return caught.value.why


@hypothesis.given(strategies.binary(min_size=1, max_size=4096).filter(any))
def test_sealed_chunk_round_trips(plain: bytes) -> None:
    name = SEAL.chunk_name(plain)
    assert SEAL.open(name, SEAL.close(name, plain), len(plain), "a holder") == plain


def test_incompressible_chunk_is_sealed_uncompressed() -> None:
    name = SEAL.chunk_name(RANDOM)
    sealed = SEAL.close(name, RANDOM)
    assert len(sealed) == len(RANDOM) + checkpoint_encryption.SEAL_BYTES
    assert SEAL.open(name, sealed, len(RANDOM), "a holder") == RANDOM


def test_largest_chunk_stays_within_the_sealed_limit() -> None:
    plain = random.Random(7).randbytes(geometry.MAX_CHUNK_BYTES)
    sealed = SEAL.close(SEAL.chunk_name(plain), plain)
    assert len(sealed) == checkpoint_encryption.MAX_SEALED_BYTES


def test_chunk_names_are_keyed_per_disk() -> None:
    assert ids.is_keyed(NAME)
    assert ids.Content(NAME, (SEAL.scope_key,)).matches_data(CHUNK)
    assert OTHER.chunk_name(CHUNK) != NAME
    assert SEAL.chunk_name(bytes(65536)) == ids.ZERO_CID


def test_equal_chunks_have_equal_sealed_bytes() -> None:
    assert SEAL.close(NAME, CHUNK) == SEALED


def test_other_compressor_output_gets_another_nonce(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two plaintexts under one nonce would reveal both."""
    other = zstandard.ZstdCompressor(level=19, write_checksum=True)
    monkeypatch.setattr(checkpoint_encryption._thread_state, "zstd", other)
    sealed = SEAL.close(NAME, CHUNK)
    assert sealed[4:16] != SEALED[4:16]
    assert SEAL.open(NAME, sealed, len(CHUNK), "a holder") == CHUNK


@hypothesis.given(strategies.integers(0, len(SEALED) - 1), strategies.integers(1, 255))
def test_altered_byte_is_detected(at: int, change: int) -> None:
    altered = bytearray(SEALED)
    altered[at] ^= change
    if at in (2, 3):
        assert "altered" in refusal(bytes(altered))
    refusal(bytes(altered))


@hypothesis.given(strategies.integers(0, len(SEALED) - 1))
def test_truncation_is_detected(length: int) -> None:
    refusal(SEALED[:length])


@hypothesis.given(strategies.binary(max_size=200))
def test_random_bytes_are_refused(sealed: bytes) -> None:
    refusal(sealed)
    with pytest.raises(errors.NotAuthenticated):
        SEAL.open_manifest(sealed, 1000)


def test_chunk_of_another_name_disk_or_length_is_refused() -> None:
    other = SEAL.chunk_name(b"other bytes")
    assert "another" in refusal(SEAL.close(other, b"other bytes"))
    assert "another" in refusal(OTHER.close(NAME, CHUNK))
    refusal(SEALED, length=len(CHUNK) + 1)
    refusal(SEALED, length=len(CHUNK) - 1)
    assert "is invalid" in refusal(SEALED + bytes(len(CHUNK)))


def test_chunk_sealed_under_a_wrong_name_is_detected() -> None:
    assert "name" in refusal(SEAL.close(NAME, CHUNK[::-1]))


def test_chunk_and_manifest_are_not_interchangeable() -> None:
    with pytest.raises(errors.NotAuthenticated):
        SEAL.open_manifest(SEALED, 1 << 20)
    refusal(SEAL.close_manifest(bytearray(CHUNK)))


def test_manifest_round_trips_within_its_size_limit() -> None:
    sealed = bytes(SEAL.close_manifest(bytearray(b"a manifest")))
    assert SEAL.open_manifest(sealed, 10) == b"a manifest"
    assert len(checkpoint_encryption.manifest_name(sealed)) == 32
    with pytest.raises(errors.NotAuthenticated, match="length"):
        SEAL.open_manifest(sealed, 9)
    with pytest.raises(errors.NotAuthenticated, match="altered"):
        OTHER.open_manifest(sealed, 10)


def test_manifest_is_sealed_in_place() -> None:
    plain = bytearray(b"a manifest")
    assert SEAL.close_manifest(plain) is plain
    assert plain != b"a manifest"
    assert SEAL.open_manifest(plain, 10) == b"a manifest"


@pytest.mark.parametrize("key", [b"", bytes(32), bytes(range(31)), bytes(range(33))])
def test_invalid_key_is_refused(key: bytes) -> None:
    with pytest.raises(ValueError, match="key"):
        checkpoint_encryption.Seal(key)
