# SPDX-License-Identifier: Apache-2.0
import pytest

from acstor_agent.sources import base
from acstor_agent.sources import verify
from acstor_common import errors
from acstor_common import ids
from tests.fakes import faulty_source

BLOB = base.Blob(ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"), base.BlobKind.IMAGE)
CHUNK = b"a chunk"
CONTENT = ids.Content(ids.cid_of(CHUNK))
KEY = ids.ScopeKey(b"k" * 32)


def verified(**faults):
    memory = faulty_source.MemorySource({BLOB: CHUNK})
    return verify.VerifySource(faulty_source.FaultySource(memory, **faults))


def test_matching_chunk_passes_also_as_memoryview():
    verify.check_chunk(memoryview(CHUNK), CONTENT, "chunk 5", "peer h2")


def test_wrong_chunk_is_invalid_and_everything_is_named():
    with pytest.raises(errors.ChunkInvalid) as caught:
        verify.check_chunk(b"other", CONTENT, "chunk 5", "peer h2")
    text = str(caught.value)
    assert "chunk 5" in text and "peer h2" in text
    assert CONTENT.cid.hex() in text and ids.cid_of(b"other").hex() in text


async def test_corrupt_read_with_content_is_invalid():
    with pytest.raises(errors.ChunkInvalid, match=rf"{BLOB.name} bytes 0-6 .* memory"):
        await verified(corrupt=[1]).read(BLOB, 0, len(CHUNK), CONTENT)


async def test_short_read_with_content_is_invalid():
    with pytest.raises(errors.ChunkInvalid, match="6 bytes"):
        await verified(truncate=[1]).read(BLOB, 0, len(CHUNK), CONTENT)


async def test_read_without_content_is_not_looked_at():
    assert await verified(corrupt=[1]).read(BLOB, 0, len(CHUNK)) != CHUNK


async def test_keyed_chunk_is_checked_with_the_keys_that_come_with_it():
    keyed = ids.Content(ids.cid_of(CHUNK, KEY), (KEY,))
    assert await verified().read(BLOB, 0, len(CHUNK), keyed) == CHUNK
    with pytest.raises(errors.ChunkInvalid):
        await verified(corrupt=[1]).read(BLOB, 0, len(CHUNK), keyed)


async def test_keyed_chunk_without_its_key_is_refused():
    keyed = ids.Content(ids.cid_of(CHUNK, KEY))
    with pytest.raises(errors.ChunkInvalid, match=r"the key of its CID .* is not known"):
        await verified().read(BLOB, 0, len(CHUNK), keyed)
