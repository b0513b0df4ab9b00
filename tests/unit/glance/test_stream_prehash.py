# SPDX-License-Identifier: Apache-2.0
"""A stream gives the map that a file gives, or none."""

import hashlib
import io
import random
from collections.abc import Iterator

import pytest

from acstor_common import artefacts
from acstor_common import errors
from acstor_common import ids
from acstor_glance import stream_prehash
from tests.fakes import glance_records as records

CHUNK = 16384


def image_of(data: bytes, **changed: object) -> dict:
    digest = hashlib.sha512(data).hexdigest()
    return records.image(size=len(data), os_hash_value=digest, **changed)


def pieces_of(data: bytes, lengths: list[int]) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        for length in lengths:
            yield data[at : at + length]
            at += length


def make(image: dict, pieces: Iterator[bytes]) -> bytes:
    file = io.BytesIO()
    stream_prehash.write_map(image, pieces, CHUNK, file)
    return file.getvalue()


@pytest.mark.parametrize(
    "lengths", [[1 << 30], [CHUNK], [1000, 1, 70000], [stream_prehash.BUFFER_BYTES]]
)
@pytest.mark.parametrize("size", [1, CHUNK, 5 * CHUNK + 7, stream_prehash.BUFFER_BYTES * 2 + 5])
def test_map_of_a_stream_has_the_images_cids(
    size: int, lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytearray(random.Random(size).randbytes(size))
    data[CHUNK : 3 * CHUNK] = bytes(len(data[CHUNK : 3 * CHUNK]))
    image = image_of(bytes(data))
    found = artefacts.parse_chunk_map(image, make(image, pieces_of(bytes(data), lengths)))
    chunks = [bytes(data[at : at + CHUNK]) for at in range(0, size, CHUNK)]
    expected = [ids.cid_of(chunk) if any(chunk) else ids.ZERO_CID for chunk in chunks]
    assert [found.cid(number) for number in range(len(found))] == expected


@pytest.mark.parametrize("came", [b"x" * 99, b"x" * 101, b""])
def test_stream_of_another_length_may_be_whole_the_next_time(came: bytes) -> None:
    with pytest.raises(errors.ImageServiceUnreachable, match="bytes came"):
        make(image_of(b"x" * 100), iter([came]))


def test_bytes_that_do_not_have_glances_hash_give_no_map() -> None:
    with pytest.raises(errors.Unusable, match="do not have the sha512"):
        make(image_of(b"x" * 100), iter([b"y" * 100]))


def test_qcow2_under_the_name_raw_is_refused() -> None:
    data = b"QFI\xfb" + (3).to_bytes(4, "big") + bytes(1 << 20)
    with pytest.raises(errors.NotRaw, match="its format is qcow2"):
        make(image_of(data), iter([data]))


def test_hash_that_nobody_knows_is_said() -> None:
    with pytest.raises(errors.Unusable, match="hash crc99 of Glance is not known"):
        make(image_of(b"x", os_hash_algo="crc99"), iter([b"x"]))
