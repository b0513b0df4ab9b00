# SPDX-License-Identifier: Apache-2.0
"""Stores of Glance that a host prefers: those with the name of a level of its location."""

import json

import pytest

from acstor_agent.sources import glance
from acstor_common import errors
from tests.fakes import fake_glance
from tests.fakes import glance_records
from tests.fakes import http_server

IMAGE = fake_glance.IMAGE
FILE, STORES = f"{fake_glance.RECORD}/file", "v2/info/stores"
NEAR = bytes(len(glance_records.BYTES))
"""The contents of the preferred store; they show which store was read."""


@pytest.fixture
def server():
    with fake_glance.serving({IMAGE.file_name: glance_records.BYTES}) as running:
        found = [{"id": name, "description": ""} for name in ("central", "dcn1", "dcn2")]
        running.files[STORES] = json.dumps({"stores": found}).encode()
        running.files[f"{FILE}?prefer=dcn1"] = NEAR
        yield running


@pytest.fixture
async def source(server):
    made = glance.GlanceSource(fake_glance.session(server.url))
    made.prefer_location(["dcn1", "rack7"])
    yield made
    await made.aclose()


async def download(source):
    received = bytearray()

    async def receive(part):
        received.extend(part)

    location = await source.find(IMAGE, is_in_use=False)
    await source.download_blob(IMAGE, location, receive)
    return bytes(received)


async def test_store_of_the_hosts_site_is_preferred(server, source):
    for _ in range(3):
        assert await source.read(IMAGE, 0, 4) == NEAR[:4]
    assert await download(source) == NEAR
    listed = [one for one in server.asked if "range" not in one]
    assert len(listed) == 1 + 1 + 1 + 1, "stores and record once, then both for the stream"


@pytest.mark.parametrize("levels", [[], [""], ["dcn3", "rack7"]])
async def test_glance_chooses_the_store_when_no_name_matches(server, source, levels):
    source.prefer_location(levels)
    assert await source.read(IMAGE, 0, 4) == glance_records.BYTES[:4]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"stores": 7}', b'{"stores": [{}]}', b'{"stores": [{"id": "x"}]}']
)
async def test_glance_without_a_store_list_is_read_without_preference(server, source, body):
    server.files[STORES] = body
    assert await source.read(IMAGE, 0, 4) == glance_records.BYTES[:4]
    del server.files[STORES]  # one store, without a name
    source.prefer_location(["dcn1"])
    assert await source.read(IMAGE, 4, 4) == glance_records.BYTES[4:8]


@pytest.mark.parametrize("status", [400, 403])
async def test_refused_preference_fails_no_read_and_is_not_repeated_soon(server, source, status):
    server.behaviours = [http_server.fine, http_server.fine, http_server.status(status)]
    assert await source.read(IMAGE, 0, 4) == glance_records.BYTES[:4]
    asked = len(server.asked)
    assert await source.read(IMAGE, 4, 4) == glance_records.BYTES[4:8]
    assert len(server.asked) == asked + 1, "it is not preferred again soon"
    assert await download(source) == glance_records.BYTES


async def test_download_continues_without_a_refused_preference(server, source):
    server.behaviours = [http_server.fine, http_server.fine, http_server.status(403)]
    assert await download(source) == glance_records.BYTES


async def test_missing_image_is_missing_despite_a_preferred_store(server, source):
    await source.read(IMAGE, 0, 4)
    server.always = http_server.status(404)
    with pytest.raises(errors.ChunkMissing):
        await source.read(IMAGE, 0, 4)
