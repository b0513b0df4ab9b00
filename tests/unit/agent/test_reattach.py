# SPDX-License-Identifier: Apache-2.0
"""Reattach of an open image whose chunk map is lost here and unavailable for a while."""

import errno
import math
import os

import pytest
import trio

from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.images.image import reattach
from acstor_agent.sources import base
from acstor_common import errors
from tests.fakes import one_host

GUEST = requests.Stream(requests.Klass.GUEST, "g1")
DATA = one_host.image_bytes(2 * one_host.CHUNK)
MAP = base.Blob(one_host.IMAGE, base.BlobKind.CHUNK_MAP)
LOST_AFTER_S = 900.0

pytestmark = pytest.mark.usefixtures("no_threads")


@pytest.fixture
async def host(tmp_path):
    async with one_host.one_host(tmp_path, data=DATA) as made:
        yield made


def opened_of(host):
    return reattach.Reattach(host.mirrors, host.waiting, math.inf, LOST_AFTER_S)


@pytest.mark.parametrize("what", [None, b"no map at all"])
async def test_reattach_waits_until_the_chunk_map_is_available(host, autojump_clock, what):
    good = host.blobs.pop(MAP)
    if what:
        host.blobs[MAP] = what

    async def mend():
        await trio.sleep(100)
        host.blobs[MAP] = good

    async with trio.open_nursery() as nursery:
        nursery.start_soon(mend)
        found = await opened_of(host).get_mirror(one_host.IMAGE, GUEST)
    assert found.size_bytes == len(DATA)
    assert trio.current_time() < LOST_AFTER_S


@pytest.mark.parametrize("what", [None, b"no map at all"])
async def test_reattach_fails_when_the_chunk_map_stays_unavailable(host, autojump_clock, what):
    del host.blobs[MAP]
    if what:
        host.blobs[MAP] = what
    began_s = trio.current_time()
    with pytest.raises(errors.ChunkMapFormatError if what else errors.ChunkMissing):
        await opened_of(host).get_mirror(one_host.IMAGE, GUEST)
    took_s = trio.current_time() - began_s
    assert LOST_AFTER_S <= took_s < LOST_AFTER_S + 10


async def test_reattach_waits_until_the_chunk_map_can_be_stored(host, autojump_clock, monkeypatch):
    replace = os.replace

    def fail(*_):
        if trio.current_time() - began_s < 100:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(*_)

    began_s = trio.current_time()
    monkeypatch.setattr(os, "replace", fail)
    found = await opened_of(host).get_mirror(one_host.IMAGE, GUEST)
    assert found.size_bytes == len(DATA)
    assert trio.current_time() - began_s >= 100
