# SPDX-License-Identifier: Apache-2.0
"""A stream gives the map that its file gives, or none."""

import hashlib
import io
import pathlib
import random
from collections.abc import Iterator

import pytest

from acstor_common import errors
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_glance.prepare import service_hashing
from acstor_glance.prepare import stream_prehash
from tests.fakes import glance_records as records
from tests.fakes import qcow2_files

CHUNK = 16384
HASHING = service_hashing.ServiceHashing(CHUNK)


def image_of(data: bytes, **changed: object) -> image_record.Image:
    digest = hashlib.sha512(data).hexdigest()
    return records.image(**{"size": len(data), "os_hash_value": digest, **changed})


def pieces_of(data: bytes, lengths: list[int]) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        for length in lengths:
            yield data[at : at + length]
            at += length


def make(image: image_record.Image, pieces: Iterator[bytes]) -> bytes:
    file = io.BytesIO()
    stream_prehash.write_map(image, pieces, file, HASHING)
    return file.getvalue()


@pytest.mark.parametrize(
    "lengths", [[1 << 30], [CHUNK], [1000, 1, 70000], [stream_prehash.BUFFER_BYTES]]
)
@pytest.mark.parametrize("size", [1, CHUNK, 5 * CHUNK + 7, stream_prehash.BUFFER_BYTES * 2 + 5])
def test_map_of_a_stream_has_the_cids_of_the_image(
    size: int, lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytearray(random.Random(size).randbytes(size))
    data[CHUNK : 3 * CHUNK] = bytes(len(data[CHUNK : 3 * CHUNK]))
    image = image_of(bytes(data))
    found = artefacts.parse_chunk_map(image, make(image, pieces_of(bytes(data), lengths)))
    chunks = [bytes(data[at : at + CHUNK]) for at in range(0, size, CHUNK)]
    expected = [ids.cid_of(chunk) if any(chunk) else ids.ZERO_CID for chunk in chunks]
    assert [found.cid_of(number) for number in range(len(found))] == expected


@pytest.mark.parametrize("came", [b"x" * 99, b"x" * 101, b""])
def test_stream_of_another_length_is_a_temporary_error(came: bytes) -> None:
    with pytest.raises(errors.ImageServiceUnreachable, match=r"received .* bytes"):
        make(image_of(b"x" * 100), iter([came]))


def test_bytes_with_another_hash_give_no_map() -> None:
    with pytest.raises(errors.Unusable, match="the sha512 of its data differs"):
        make(image_of(b"x" * 100), iter([b"y" * 100]))


def test_qcow2_declared_as_raw_is_refused() -> None:
    data = b"QFI\xfb" + (3).to_bytes(4, "big") + bytes(1 << 20)
    with pytest.raises(errors.NotRaw, match="its format is qcow2"):
        make(image_of(data), iter([data]))


def test_unknown_hash_algorithm_is_named() -> None:
    with pytest.raises(errors.Unusable, match="hash algorithm crc99 in Glance is unsupported"):
        make(image_of(b"x", os_hash_algo="crc99"), iter([b"x"]))


def qcow2_file() -> bytes:
    packed = qcow2_files.deflated(b"c" * 4096)
    entries = [5 << 12, 0, qcow2_files.compressed_entry(4 << 12, len(packed))]
    data = packed.ljust(4096, b"\0") + b"s" * 4096
    return qcow2_files.File(size=5 * 4096, l2_entries=entries, data=data).pack()


def make_qcow2(folder: pathlib.Path, data: bytes, came: bytes, **changed: object) -> bytes:
    image, file = image_of(data, disk_format="qcow2", **changed), io.BytesIO()
    stream_prehash.write_map(image, pieces_of(came, [1000, 1, 5000]), file, HASHING, folder)
    return file.getvalue()


def test_stream_of_a_qcow2_image_gives_the_map_of_its_disk(
    tmp_path: pathlib.Path,
) -> None:
    data = qcow2_file()
    raw = make_qcow2(tmp_path, data, data)
    found = artefacts.parse_chunk_map(image_of(data, disk_format="qcow2"), raw)
    guest = b"s" * 4096 + bytes(4096) + b"c" * 4096 + bytes(4096)
    assert [found.cid_of(0), found.cid_of(1)] == [ids.cid_of(guest), ids.ZERO_CID]
    assert found.geometry.size_bytes == 5 * 4096
    assert [extent.offset for extent in found.layout.find(0, 5 * 4096)] == [5 << 12, 4 << 12]
    assert list(tmp_path.iterdir()) == []


def test_invalid_stream_of_a_qcow2_image_gives_no_map(
    tmp_path: pathlib.Path,
) -> None:
    data = qcow2_file()
    for came in (data[:-1], data + b"x"):
        with pytest.raises(errors.ImageServiceUnreachable, match=r"received .* bytes"):
            make_qcow2(tmp_path, data, came)
    with pytest.raises(errors.ContentMismatch):
        make_qcow2(tmp_path, data, data[:-1] + b"x")
    backed = qcow2_files.File(backing_offset=200).pack()
    with pytest.raises(errors.NotRaw, match="backing file"):
        make_qcow2(tmp_path, backed, backed)
    with_subclusters = qcow2_files.File(cluster_bits=14, incompatible=16).pack()
    with pytest.raises(errors.NotRaw, match="incompatible features"):
        make_qcow2(tmp_path, with_subclusters, with_subclusters)
    large = qcow2_files.File(size=3 << 40).pack()
    with pytest.raises(errors.NotRaw, match="its disk is too large"):
        make_qcow2(tmp_path, large, large)
    raw = b"x" * 100_000
    with pytest.raises(errors.NotRaw, match="its format is raw, but qcow2 in Glance"):
        make_qcow2(tmp_path, raw, raw)
    assert list(tmp_path.iterdir()) == []


def test_qcow2_image_too_large_for_the_disk_is_not_started(tmp_path: pathlib.Path) -> None:
    with pytest.raises(
        errors.Unusable, match="there is no space for its 1152921504606846976 bytes"
    ):
        make_qcow2(tmp_path, b"", b"never read", size=1 << 60)
    assert list(tmp_path.iterdir()) == []
