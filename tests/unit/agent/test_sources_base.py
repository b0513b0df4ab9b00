# SPDX-License-Identifier: Apache-2.0
import pytest

from acstor_agent.sources import base
from acstor_agent.sources import driver
from acstor_common import errors
from acstor_common.model import ids
from tests.fakes import faulty_source

BLOB = base.Blob(ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"), base.BlobKind.CHUNK_MAP)


def test_blob_is_named_after_image_and_kind():
    assert BLOB.file_name == "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11.acmap"


def test_part_names_first_and_last_byte():
    assert BLOB.describe_range(65_536, 4_096) == f"{BLOB.file_name} bytes 65536-69631"


def test_negative_range_names_blob_and_numbers():
    with pytest.raises(errors.LocalProtocolError, match=rf"{BLOB.file_name}.*offset -5, length 7"):
        driver.check_pieces(BLOB, [base.BlobPiece(-5, 7)])


async def test_wrapper_by_itself_changes_nothing():
    inner = faulty_source.FaultySource(faulty_source.MemorySource({BLOB: b"0123456789"}))
    wrapper = base.Wrapper(inner)
    assert await wrapper.read(BLOB, 2, 3) == b"234"
    assert await wrapper.size_bytes(BLOB) == 10
    assert (wrapper.location, wrapper.max_concurrent_reads) == (
        "memory",
        base.DEFAULT_CONCURRENT_READS,
    )
    await wrapper.aclose()
    assert inner.is_closed
