# SPDX-License-Identifier: Apache-2.0
import errno
import os
import pathlib
import types

import pytest
import trio

from acstor_agent.images.image import mirrors
from acstor_agent.sources import base
from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.model import ids
from tests.fakes import one_host

IMAGE, OTHER = one_host.IMAGE, one_host.OTHER
DATA = one_host.image_bytes(5 * one_host.CHUNK)
PEER = ids.HostId("h2")
MAP = base.Blob(IMAGE, base.BlobKind.CHUNK_MAP)


@pytest.fixture
async def host(tmp_path):
    async with one_host.one_host(tmp_path, data=DATA) as made:
        yield made


async def test_image_is_attached_once_and_its_map_kept(host):
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(host.mirrors.attach_image, IMAGE)
    assert len(host.source.reads) == 1
    assert host.mirrors.list_attached() == [IMAGE]
    assert (host.maps / f"{IMAGE}.acmap").read_bytes() == host.blobs[MAP]
    assert host.mirrors.get_nowait(IMAGE) is await host.mirrors.attach_image(IMAGE)


async def test_stored_map_is_attached_without_the_source(tmp_path):
    async with one_host.one_host(tmp_path, data=DATA) as host:
        await host.mirrors.attach_image(IMAGE)
    async with one_host.one_host(tmp_path) as host:
        assert host.mirrors.list_attached() == [IMAGE]
        assert host.mirrors.get_nowait(IMAGE) is None
        assert (await host.mirrors.attach_image(IMAGE)).size_bytes == len(DATA)
        assert host.source.reads == []


@pytest.mark.parametrize(
    ("blobs", "error"),
    [
        ({}, errors.ChunkMissing),
        ({MAP: b""}, errors.ChunkMapFormatError),
        ({MAP: b"hello"}, errors.ChunkMapFormatError),
        ({MAP: one_host.map_of(DATA)[:-1]}, errors.ChunkMapFormatError),
        ({MAP: one_host.map_of(DATA, OTHER)}, errors.ChunkMapFormatError),
        ({MAP: one_host.map_of(DATA)}, errors.ChunkMissing),
        (
            {MAP: one_host.map_of(DATA), base.Blob(IMAGE, base.BlobKind.IMAGE): DATA[:-1]},
            errors.ChunkMapFormatError,
        ),
    ],
)
async def test_failed_attach_leaves_no_map_and_can_be_repeated(tmp_path, blobs, error):
    async with one_host.one_host(tmp_path) as host:
        host.blobs.update(blobs)
        with pytest.raises(error, match=str(IMAGE)):
            await host.mirrors.attach_image(IMAGE)
        assert host.mirrors.list_attached() == []
        assert list(host.maps.iterdir()) == []
        host.add(DATA)
        assert (await host.mirrors.attach_image(IMAGE)).size_bytes == len(DATA)


async def test_cancelled_attach_leaves_nothing_and_can_be_repeated(host):
    for checkpoints in range(8):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(host.mirrors.attach_image, IMAGE)
                for _ in range(checkpoints):
                    await trio.lowlevel.checkpoint()
                scope.cancel()
        assert not list(host.maps.glob(".*"))
        if host.mirrors.list_attached():
            host.mirrors.detach_image(IMAGE)
    assert (await host.mirrors.attach_image(IMAGE)).size_bytes == len(DATA)


async def test_detached_image_is_forgotten(host):
    await host.mirrors.attach_image(IMAGE)
    host.mirrors.detach_image(IMAGE)
    assert host.mirrors.list_attached() == []
    assert host.mirrors.get_nowait(IMAGE) is None
    with pytest.raises(errors.Unusable, match="is not attached here"):
        host.mirrors.detach_image(IMAGE)


async def test_image_stays_attached_until_its_map_can_be_deleted(host):
    await host.mirrors.attach_image(IMAGE)
    kept = host.maps / f"{IMAGE}.acmap"
    kept.unlink()
    kept.mkdir()
    with pytest.raises(OSError):
        host.mirrors.detach_image(IMAGE)
    assert host.mirrors.list_attached() == [IMAGE] and host.mirrors.is_attached(IMAGE)
    kept.rmdir()
    host.mirrors.detach_image(IMAGE)  # another process has deleted it
    assert host.mirrors.list_attached() == [] and not host.mirrors.is_attached(IMAGE)


async def test_map_folder_is_listed_once(tmp_path, monkeypatch):
    async with one_host.one_host(tmp_path, data=DATA) as host:
        await host.mirrors.attach_image(IMAGE)
    async with one_host.one_host(tmp_path) as host:
        host.add(DATA, OTHER)
        monkeypatch.setattr(os, "listdir", None)
        assert host.mirrors.list_attached() == [IMAGE]
        await host.mirrors.attach_image(OTHER)
        assert host.mirrors.list_attached() == [IMAGE, OTHER]
        host.mirrors.detach_image(IMAGE)
        assert host.mirrors.list_attached() == [OTHER]
    monkeypatch.undo()
    async with one_host.one_host(tmp_path) as host:
        assert host.mirrors.list_attached() == [OTHER]


async def test_map_that_appears_after_start_is_attached_without_the_source(tmp_path):
    async with one_host.one_host(tmp_path, data=DATA) as host:
        await host.mirrors.attach_image(IMAGE)
    hidden = (tmp_path / "maps" / f"{IMAGE}.acmap").rename(tmp_path / "hidden")
    async with one_host.one_host(tmp_path) as host:
        assert host.mirrors.list_attached() == []
        hidden.rename(tmp_path / "maps" / f"{IMAGE}.acmap")
        await host.mirrors.attach_image(IMAGE)
        assert host.mirrors.list_attached() == [IMAGE] and host.source.reads == []


@pytest.mark.expect_log("cannot be read")
async def test_images_are_attached_once_the_map_folder_is_readable(tmp_path, monkeypatch):
    async with one_host.one_host(tmp_path, data=DATA) as host:
        await host.mirrors.attach_image(IMAGE)
    listdir = os.listdir

    def fail(folder):
        if pathlib.Path(folder).name == "maps":
            raise OSError(errno.EIO, "Input/output error")
        return listdir(folder)

    monkeypatch.setattr(os, "listdir", fail)
    async with one_host.one_host(tmp_path) as host:
        await host.mirrors.attach_new_maps()
        assert host.mirrors.list_attached() == []
        monkeypatch.setattr(os, "listdir", listdir)
        await host.mirrors.attach_new_maps()
        assert host.mirrors.list_attached() == [IMAGE]
        monkeypatch.setattr(os, "listdir", lambda folder: [f"{IMAGE}.acmap"])
        host.mirrors.detach_image(IMAGE)
        await host.mirrors.attach_new_maps()  # it was listed just before that
        assert host.mirrors.list_attached() == []


async def test_size_of_an_unopened_image_is_known(tmp_path):
    async with one_host.one_host(tmp_path, data=DATA) as host:
        assert host.mirrors.size_bytes(IMAGE) is None
        await host.mirrors.attach_image(IMAGE)
        assert host.mirrors.size_bytes(IMAGE) == len(DATA)
    async with one_host.one_host(tmp_path) as host:
        assert host.mirrors.size_bytes(IMAGE) == len(DATA)
        assert host.mirrors.get_nowait(IMAGE) is None
        os.truncate(tmp_path / "maps" / f"{IMAGE}.acmap", 100)
        assert host.mirrors.size_bytes(IMAGE) == len(DATA)  # the size is read once
        host.mirrors.detach_image(IMAGE)
        assert host.mirrors.size_bytes(IMAGE) is None
    (tmp_path / "maps" / f"{IMAGE}.acmap").write_bytes(bytes(1000))
    async with one_host.one_host(tmp_path) as host:
        assert host.mirrors.size_bytes(IMAGE) is None and host.mirrors.list_attached() == [IMAGE]


async def test_image_detached_while_another_thread_reads_its_size_is_forgotten(
    tmp_path, monkeypatch
):
    read_subject = mirrors.chunk_map_header.subject_of
    async with one_host.one_host(tmp_path, data=DATA) as host:
        await host.mirrors.attach_image(IMAGE)
    async with one_host.one_host(tmp_path) as host:

        def detach_and_read(*given):
            host.mirrors.detach_image(IMAGE)
            return read_subject(*given)

        monkeypatch.setattr(mirrors.chunk_map_header, "subject_of", detach_and_read)
        assert host.mirrors.size_bytes(IMAGE) == len(DATA)  # as it was when asked
        assert host.mirrors.size_bytes(IMAGE) is None
        assert not host.mirrors._subjects


async def test_touch_time_survives_a_restart(tmp_path):
    async with one_host.one_host(tmp_path, data=DATA) as host:
        assert host.mirrors.touched_ns(IMAGE) == 0
        await host.mirrors.attach_image(IMAGE)
        host.mirrors.save_time_stamp(IMAGE, 123_456_789_000_000_001)
    async with one_host.one_host(tmp_path) as host:
        assert host.mirrors.touched_ns(IMAGE) == 123_456_789_000_000_001


@pytest.mark.expect_log("not the name of a chunk map; ignored")
async def test_foreign_file_in_the_map_folder_is_kept(tmp_path):
    (tmp_path / "maps").mkdir()
    (tmp_path / "maps" / "hello.acmap").write_bytes(b"hello")
    async with one_host.one_host(tmp_path) as host:
        assert host.mirrors.list_attached() == []
        assert (host.maps / "hello.acmap").exists()


@pytest.mark.expect_log("fetching it from the source again")
async def test_damaged_stored_map_is_fetched_again(tmp_path):
    async with one_host.one_host(tmp_path, data=DATA) as host:
        await host.mirrors.attach_image(IMAGE)
    os.truncate(tmp_path / "maps" / f"{IMAGE}.acmap", 100)
    async with one_host.one_host(tmp_path, data=DATA) as host:
        assert (await host.mirrors.attach_image(IMAGE)).size_bytes == len(DATA)


@pytest.mark.expect_log("unreadable: Input/output error; fetching it from the source again")
async def test_stored_map_with_a_bad_sector_is_fetched_again(tmp_path, monkeypatch):
    async with one_host.one_host(tmp_path, data=DATA) as host:
        await host.mirrors.attach_image(IMAGE)
    bad, preadv = (tmp_path / "maps" / f"{IMAGE}.acmap").stat().st_ino, os.preadv

    def read(fd, *more):
        if os.fstat(fd).st_ino == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return preadv(fd, *more)

    monkeypatch.setattr(os, "preadv", read)
    async with one_host.one_host(tmp_path, data=DATA) as host:
        assert (await host.mirrors.attach_image(IMAGE)).size_bytes == len(DATA)


async def test_oversized_chunk_map_is_refused(host, monkeypatch):
    async def endless(blob):
        return 1 << 50

    monkeypatch.setattr(host.source, "size_bytes", endless)
    with pytest.raises(errors.ChunkMapFormatError, match="too many for a map"):
        await host.mirrors.attach_image(IMAGE)


async def test_concurrent_attaches_share_the_limit_of_map_bytes(host):
    host.add(DATA, OTHER)
    host.mirrors.max_all_maps_bytes = len(host.blobs[MAP]) * 3 // 2
    refused = []

    async def attach(image_id):
        try:
            await host.mirrors.attach_image(image_id)
        except errors.Unusable:
            refused.append(image_id)

    async with trio.open_nursery() as nursery:
        for image_id in (IMAGE, OTHER):
            nursery.start_soon(attach, image_id)
    assert len(refused) == len(host.mirrors.list_attached()) == 1


async def test_chunk_maps_of_a_host_share_one_size_limit(host):
    host.add(DATA, OTHER)
    host.mirrors.max_all_maps_bytes = len(host.blobs[MAP]) * 3 // 2
    await host.mirrors.attach_image(IMAGE)
    with pytest.raises(errors.Unusable, match=r"all chunk maps take .* Detach images"):
        await host.mirrors.attach_image(OTHER)
    assert host.mirrors.list_attached() == [IMAGE]
    host.mirrors.detach_image(IMAGE)
    assert (await host.mirrors.attach_image(OTHER)).size_bytes == len(DATA)


@pytest.mark.parametrize(
    ("os_hash", "why"),
    [
        (chunk_map.OsHash("sha512", bytes(64)), r"instead of 0{16}….* it was changed in the store"),
        (chunk_map.OsHash("md6", bytes(16)), "its hash md6 is unsupported"),
    ],
)
async def test_map_of_another_image_hash_than_in_glance_is_refused(host, monkeypatch, os_hash, why):
    monkeypatch.setattr(type(host.source), "os_hash", lambda _source, _blob: os_hash)
    with pytest.raises(errors.ChunkMapFormatError, match=why):
        await host.mirrors.attach_image(IMAGE)
    assert list(host.maps.iterdir()) == []


async def test_partial_map_of_a_killed_worker_is_removed_at_start(tmp_path):
    (tmp_path / "maps").mkdir()
    (tmp_path / "maps" / ".incoming-abc").write_bytes(b"half a map")
    async with one_host.one_host(tmp_path) as host:
        assert list(host.maps.iterdir()) == []


async def test_image_whose_inode_number_is_in_use_leaves_no_map(host):
    def refuse(image_id: object) -> None:
        raise errors.NumberInUse(f"image {image_id}", "another image", 1)

    refusing = mirrors.Mirrors(host.maps, host.source, types.SimpleNamespace(register_image=refuse))
    refusing.set_mirror_factory(host._mirror)
    with pytest.raises(errors.NumberInUse):
        await refusing.attach_image(IMAGE)
    assert refusing.list_attached() == []
    assert list(host.maps.iterdir()) == []


async def test_map_lookups_of_peers_need_no_source_after_a_restart(tmp_path):
    async with one_host.one_host(tmp_path, data=DATA) as host:
        await host.mirrors.attach_image(IMAGE)
    async with one_host.one_host(tmp_path) as host:  # its source has no image
        learnt = {}

        async def ask(chunk_no):
            place = IMAGE, chunk_no * one_host.CHUNK, one_host.CHUNK
            learnt[chunk_no] = (await host.naming.read_map_for_peer(PEER, *place)).cid

        async with trio.open_nursery() as nursery:
            for chunk_no in range(5):
                nursery.start_soon(ask, chunk_no)
        assert learnt == {n: host.mirrors.get_nowait(IMAGE).map.cid_of(n) for n in range(5)}
        assert [image.map.image_id for image in host.mirrors.open()] == [IMAGE]
        assert host.source.reads == []
        assert not await host.mirrors.open_attached(IMAGE)
        assert not await host.mirrors.open_attached(OTHER)


async def test_damaged_map_is_neither_opened_for_peers_nor_refetched(tmp_path):
    async with one_host.one_host(tmp_path, data=DATA) as host:
        await host.mirrors.attach_image(IMAGE)
    os.truncate(tmp_path / "maps" / f"{IMAGE}.acmap", 100)
    async with one_host.one_host(tmp_path) as host:
        with pytest.raises(errors.ChunkMissing):
            await host.naming.read_map_for_peer(PEER, IMAGE, 0, one_host.CHUNK)
        assert not await host.mirrors.open_attached(IMAGE)
        assert host.mirrors.open() == []
        host.mirrors.detach_image(IMAGE)
