# SPDX-License-Identifier: Apache-2.0
"""Flattening disks: copied chunks, guest writes that stay, and unavailable chunks."""

import errno
import os

import pytest
import trio

from acstor_agent.core.disks import disk_header
from acstor_agent.disks import disk
from acstor_agent.disks import disk_files
from acstor_agent.disks import disks
from acstor_agent.disks import flatten_disks
from acstor_common import errors
from tests.fakes import one_host

CHUNK = one_host.CHUNK
DATA = one_host.image_bytes(6 * CHUNK) + bytes(2 * CHUNK) + one_host.image_bytes(777, seed=2)
SIZE = 10 * CHUNK + 123
NEEDED = 6 * CHUNK + 777
IDS = [disk_header.parse_disk_id(f"0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e2{n}") for n in range(2)]


class Host:
    """A host with disks of one image."""

    def __init__(self, parts, folder):
        self.parts, self.folder = parts, folder
        self.disks = self.all_disks()
        self.reports = []

    def all_disks(self, boot=0):
        return disks.Disks(self.folder, self.parts.opened, bytes([boot] * 16))

    async def make(self, disk_id=IDS[0], size_bytes=SIZE):
        image = await self.parts.mirrors.attach_image(one_host.IMAGE)
        return await self.disks.make_disk(disk_id, image, size_bytes)

    async def hydrate(self, *made):
        async def report(done_bytes, total_bytes):
            self.reports.append((done_bytes, total_bytes))

        image = await self.parts.mirrors.attach_image(one_host.IMAGE)
        return await flatten_disks.flatten(made, image, self.parts.chunks, report)

    def lose_everything(self):
        """Empty the cache, and make the source answer not found."""
        for cid in list(self.parts.cache.iter_cids()):
            self.parts.cache.drop_chunk(cid)
        self.parts.source._error, self.parts.source._fail = errors.ChunkMissing, range(1, 10_000)


@pytest.fixture
async def host(tmp_path):
    async with one_host.one_host(tmp_path, data=DATA) as parts:
        yield Host(parts, tmp_path / "disks")


async def content(one: disk.Disk) -> bytes:
    return b"".join([bytes(await one.read(at, CHUNK)) for at in range(0, one.size_bytes, CHUNK)])


async def test_flattened_disk_is_readable_without_cache_and_source(host):
    made = await host.make()
    came = await host.hydrate(made)
    assert came == {"done_bytes": NEEDED, "fetched_bytes": NEEDED, "failed_bytes": 0}
    assert host.reports[0] == (0, NEEDED)
    assert (made.written_chunks, made.unsynced_chunks) == (7, 0)
    host.lose_everything()
    assert await content(made) == DATA.ljust(SIZE, b"\0")


async def test_flatten_keeps_guest_writes_and_fetches_no_overwritten_chunk(host):
    made = await host.make()
    await made.write(CHUNK, b"g" * CHUNK)
    await made.write(8 * CHUNK + 5, b"guest")
    assert (await host.hydrate(made))["done_bytes"] == 5 * CHUNK
    truth = bytearray(DATA.ljust(SIZE, b"\0"))
    truth[CHUNK : 2 * CHUNK] = b"g" * CHUNK
    truth[8 * CHUNK + 5 : 8 * CHUNK + 10] = b"guest"
    assert await content(made) == truth
    assert await host.hydrate(made) == {"done_bytes": 0, "fetched_bytes": 0, "failed_bytes": 0}


async def test_guest_may_write_during_flatten(host):
    made, truth = await host.make(), bytearray(DATA.ljust(SIZE, b"\0"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.hydrate, made)
        for chunk_no in range(9):
            await made.write(chunk_no * CHUNK + 9, b"guest")
            truth[chunk_no * CHUNK + 9 : chunk_no * CHUNK + 14] = b"guest"
    host.lose_everything()
    assert await content(made) == truth


async def test_flattened_data_survives_a_host_restart(host):
    await host.hydrate(await host.make())
    host.lose_everything()
    again = await host.all_disks(boot=1).open(IDS[0])
    assert await content(again) == DATA.ljust(SIZE, b"\0")


async def test_flatten_needs_no_source_when_chunks_are_cached(host):
    made = await host.make()
    for at in range(0, len(DATA), CHUNK):
        await made.read(at, CHUNK)
    host.parts.source._error, host.parts.source._fail = errors.ChunkMissing, range(1, 10_000)
    assert (await host.hydrate(made))["fetched_bytes"] == 0
    assert made.chunks_of_image() == [6, 7]  # zeros


async def test_failed_flatten_names_each_disk_with_missing_chunks(host):
    whole, part = await host.make(), await host.make(IDS[1])
    await part.write(0, b"x" * CHUNK)
    for chunk_no in (1, 2):
        await part.read(chunk_no * CHUNK, CHUNK)
    host.parts.source._error, host.parts.source._fail = errors.ChunkMissing, range(1, 10_000)
    with pytest.raises(errors.Unusable) as caught:
        await host.hydrate(whole, part)
    reported = str(caught.value)
    assert f"disk {IDS[0]}: 5 chunks unavailable" in reported
    assert f"disk {IDS[1]}: 4 chunks unavailable" in reported
    assert "repeat the command" in reported
    assert part.chunks_of_image() == [3, 4, 5, 6, 7, 8]
    host.parts.source._fail = range(0)
    await host.hydrate(whole, part)
    assert whole.chunks_of_image() == part.chunks_of_image() == [6, 7]


async def test_flatten_on_a_full_host_disk_fails_and_changes_nothing(host, monkeypatch):
    made = await host.make()

    def full(*_args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(disk_files, "_write_all", full)
        with pytest.raises(errors.Unusable, match="No space left"):
            await host.hydrate(made)
    assert made.written_chunks == 0
    assert await content(made) == DATA.ljust(SIZE, b"\0")
