# SPDX-License-Identifier: Apache-2.0
"""Disks on one host without a mount: copy on write, durability and faults."""

import errno
import os
import random
import stat
import uuid

import pytest
import trio
import trio.testing

from acstor_agent.core.disks import disk_header
from acstor_agent.core.mount import inodes
from acstor_agent.disks import disk
from acstor_agent.disks import disk_files
from acstor_agent.disks import disks
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import priority
from acstor_agent.sources import base
from acstor_common import errors
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.wire.peer import peer_request
from tests.fakes import one_host

CHUNK = one_host.CHUNK
DATA = one_host.image_bytes(6 * CHUNK) + bytes(CHUNK) + one_host.image_bytes(777, seed=2)
SIZE = 10 * CHUNK + 123
DISK = disk_header.parse_disk_id("0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e21")
OTHER_DISK = disk_header.parse_disk_id("0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e22")
BOOTS = [uuid.UUID(int=n).bytes for n in range(3)]


@pytest.fixture
async def host(tmp_path):
    async with one_host.one_host(tmp_path, data=DATA) as made:
        yield made


def all_disks(host, folder, boot=0):
    return disks.Disks(folder / "disks", host.opened, BOOTS[boot])


async def make(host, folder, size_bytes=SIZE):
    image = await host.mirrors.attach_image(one_host.IMAGE)
    return await all_disks(host, folder).make_disk(DISK, image, size_bytes)


@pytest.fixture
async def made(host, tmp_path):
    one = await make(host, tmp_path)
    del host.source.reads[:]  # reads of the chunk map
    return one


async def content(one: disk.Disk) -> bytes:
    parts = [bytes(await one.read(at, CHUNK)) for at in range(0, one.size_bytes, CHUNK)]
    return b"".join(parts)


def fail_all_reads(host) -> None:
    host.source._error, host.source._fail = errors.ChunkMissing, range(1, 100)


def fresh_content() -> bytearray:
    return bytearray(DATA.ljust(SIZE, b"\0"))


async def test_new_disk_reads_as_the_image_followed_by_zeros(made):
    assert await content(made) == fresh_content()
    assert (made.written_chunks, os.fstat(made.fd).st_blocks) == (0, 0)


async def test_disk_size_defaults_to_the_image_size(host, tmp_path):
    one = await make(host, tmp_path, None)
    assert await content(one) == DATA


async def test_random_reads_and_writes_equal_those_of_a_plain_file(host, made):
    truth, rng = fresh_content(), random.Random(4)
    for _ in range(150):
        offset = rng.choice([rng.randrange(SIZE), rng.randrange(11) * CHUNK])
        length = rng.choice([1, 511, 4096, CHUNK, 3 * CHUNK, rng.randrange(4 * CHUNK)])
        if rng.random() < 0.4:
            data = rng.randbytes(length)
            written = await made.write(offset, data)
            assert written == min(length, SIZE - offset)
            truth[offset : offset + written] = data[:written]
        assert await made.read(offset, length) == truth[offset : offset + length]
    assert await content(made) == truth


async def test_write_of_a_whole_chunk_fetches_nothing(host, made):
    await made.write(CHUNK, b"x" * 2 * CHUNK)
    await made.write(8 * CHUNK + 5, b"behind the image")
    await made.write(10 * CHUNK, b"y" * 123)
    assert host.source.reads == []
    assert made.written_chunks == 4


async def test_partial_write_fetches_only_its_chunk(host, made):
    await made.write(2 * CHUNK + 5, b"abc")
    assert host.source.reads == [(2 * CHUNK, CHUNK)]
    await made.write(2 * CHUNK + 500, b"def")
    assert host.source.reads == [(2 * CHUNK, CHUNK)]
    assert made.written_chunks == 1


async def test_both_ends_of_a_write_are_fetched_concurrently(host, made):
    host.source._delay, host.source._delay_s = range(1, 9), 0.05
    await made.write(CHUNK + 5, b"x" * 3 * CHUNK)
    assert sorted(host.source.reads) == [(CHUNK, CHUNK), (4 * CHUNK, CHUNK)]
    assert host.source.in_flight_most == 2


async def test_concurrent_partial_writes_of_a_chunk_lose_no_data(host, made):
    truth = fresh_content()
    async with trio.open_nursery() as nursery:
        for n in range(20):
            truth[CHUNK + n * 100 : CHUNK + n * 100 + 50] = bytes([n]) * 50
            nursery.start_soon(made.write, CHUNK + n * 100, bytes([n]) * 50)
        nursery.start_soon(made.write, 2 * CHUNK - 10, b"z" * 20)
        truth[2 * CHUNK - 10 : 2 * CHUNK + 10] = b"z" * 20
    assert await content(made) == truth
    assert made._locks == {}


@pytest.mark.expect_log("data is lost")
async def test_write_whose_fetch_fails_changes_nothing(host, made):
    fail_all_reads(host)
    with pytest.raises(errors.AcstorError):
        await made.write(CHUNK + 5, b"abc")
    assert made.written_chunks == 0
    host.source._fail = ()
    assert await content(made) == fresh_content()
    assert made._locks == {}


@pytest.mark.expect_log("data is lost")
async def test_written_data_is_readable_while_the_source_is_down(host, made):
    await made.write(CHUNK, b"x" * CHUNK)
    fail_all_reads(host)
    assert await made.read(CHUNK, CHUNK) == b"x" * CHUNK
    with pytest.raises(errors.AcstorError):
        await made.read(CHUNK, CHUNK + 1)


async def test_write_beyond_the_end_is_refused_or_truncated(made):
    with pytest.raises(OSError, match="too large") as caught:
        await made.write(SIZE, b"x")
    assert caught.value.errno == errno.EFBIG
    assert await made.write(SIZE - 2, b"abcdef") == 2
    assert os.fstat(made.fd).st_size == SIZE
    assert await made.read(SIZE - 2, 99) == b"ab"
    assert await made.read(SIZE, 99) == b""


async def test_written_data_is_never_served_to_peers(host, made):
    secret = b"s" * CHUNK
    await made.write(CHUNK, secret)
    await made.write(2 * CHUNK + 5, b"abc")
    part = bytes(await made.read(2 * CHUNK, CHUNK))
    for data in (secret, part):
        cid = ids.cid_of(data)
        assert cid not in host.cache
        here, peer = ids.HostId("h1"), ids.HostId("h2")
        proof = peer_request.proof_of(cid, peer, here)
        place = one_host.IMAGE, CHUNK, CHUNK
        home, waits = peer_request.Mode.HOME, priority.Priority.PEER
        asked = chunk_ref.Request(1, *place, proof, home, waits, 1.0)
        assert isinstance(host.chunks.core.rights.authorize(peer, asked), str)
    image = bytes(await (await host.mirrors.attach_image(one_host.IMAGE)).read_at(0, 3 * CHUNK))
    assert image == DATA[: 3 * CHUNK]


async def test_unsynced_writes_survive_a_worker_restart(host, made, tmp_path):
    await made.write(CHUNK + 5, b"abc")
    truth = fresh_content()
    truth[CHUNK + 5 : CHUNK + 8] = b"abc"
    again = await all_disks(host, tmp_path).open(DISK)
    assert await content(again) == truth
    assert (again.written_chunks, again.unsynced_chunks) == (1, 1)


@pytest.mark.expect_log(r"1 chunks were not synced when the host went down")
async def test_after_a_power_failure_a_chunk_is_from_the_guest_or_the_image(host, made, tmp_path):
    await made.write(CHUNK + 5, b"abc")
    await made.sync()
    await made.write(CHUNK + 5, b"abd")  # the chunk is synced and written in place
    await made.write(3 * CHUNK + 5, b"lost")
    os.pwrite(made.fd, b"\xee" * CHUNK, 3 * CHUNK)  # leftovers of the failure
    truth = fresh_content()
    truth[CHUNK + 5 : CHUNK + 8] = b"abd"
    for _ in range(2):  # the next worker after the reboot must not trust the old marks
        again = await all_disks(host, tmp_path, boot=1).open(DISK)
        assert await content(again) == truth
    await again.write(3 * CHUNK + 9, b"new")
    truth[3 * CHUNK + 9 : 3 * CHUNK + 12] = b"new"
    assert await content(again) == truth
    same_boot = await all_disks(host, tmp_path, boot=1).open(DISK)
    assert await content(same_boot) == truth


async def test_synced_chunks_survive_repeated_power_failures(host, made, tmp_path):
    await made.write(0, b"x" * 3 * CHUNK)
    await made.sync()
    assert made.unsynced_chunks == 0
    for boot in (1, 2, 1):
        again = await all_disks(host, tmp_path, boot).open(DISK)
        assert await again.read(0, 3 * CHUNK) == b"x" * 3 * CHUNK


async def test_sync_marks_chunks_only_after_their_data_is_durable(made, monkeypatch):
    done = []
    for name in ("fdatasync", "pwritev"):
        real = getattr(os, name)
        monkeypatch.setattr(
            os,
            name,
            lambda fd, *a, real=real, name=name: (done.append((name, fd)), real(fd, *a))[1],
        )
    data, state = made.fd, made._files._state_fd
    await made.write(0, b"x" * CHUNK)
    assert done == [("pwritev", data), ("pwritev", state)]
    del done[:]
    await made.sync()
    assert done == [("fdatasync", data), ("pwritev", state), ("fdatasync", state)]


async def test_chunks_of_a_cancelled_sync_are_synced_by_the_next_one(host, tmp_path):
    one = await make(host, tmp_path)
    await one.write(0, b"g" * CHUNK)
    threads = trio.to_thread.current_default_thread_limiter()
    threads.total_tokens, before = 1, threads.total_tokens
    async with threads:  # the sync has to wait
        with trio.move_on_after(0.01):
            await one.sync()
    threads.total_tokens = before
    assert one.unsynced_chunks == 1
    await one.sync()
    after = await all_disks(host, tmp_path, boot=1).open(DISK)
    assert await after.read(0, CHUNK) == b"g" * CHUNK


@pytest.mark.expect_log(r"syncs fail: \[Errno 5\] the disk is gone")
@pytest.mark.expect_log("syncs fail: an earlier one failed")
async def test_failed_sync_fails_every_later_one(host, made, tmp_path, monkeypatch):
    await made.write(0, b"x" * CHUNK)

    def fail(fd):
        raise OSError(errno.EIO, "the disk is gone")

    with monkeypatch.context() as faults:
        faults.setattr(os, "fdatasync", fail)
        with pytest.raises(OSError, match="the disk is gone"):
            await made.sync()
    with pytest.raises(OSError, match="the disk is gone") as caught:
        await made.sync()
    assert (caught.value.errno, made.unsynced_chunks) == (errno.EIO, 1)
    again = await all_disks(host, tmp_path).open(DISK)
    with pytest.raises(OSError, match="an earlier one failed") as caught:
        await again.sync()
    assert (caught.value.errno, again.unsynced_chunks) == (errno.EIO, 1)
    next(tmp_path.rglob(f"*{disk_files.FAILED_ENDING}")).unlink()
    mended = await all_disks(host, tmp_path).open(DISK)
    await mended.sync()
    assert mended.unsynced_chunks == 0


@pytest.mark.allow_log(r"syncs fail: .* ended")
@pytest.mark.parametrize("nth", range(1, 6))
async def test_worker_killed_between_two_steps_leaves_old_or_new_data(
    host, made, tmp_path, monkeypatch, nth
):
    await made.write(5 * CHUNK + 3, b"before")
    old = bytes(await content(made))
    new = old[: CHUNK + 5] + b"n" * 2 * CHUNK + old[3 * CHUNK + 5 :]
    calls = [0]

    def ends(name):
        real = getattr(os, name)

        def call(fd, *args):
            if fd in (made.fd, made._files._state_fd):
                calls[0] += 1
                if calls[0] >= nth:
                    raise OSError(errno.EIO, "ended")
            return real(fd, *args)

        return call

    with monkeypatch.context() as faults:
        for name in ("pwritev", "fdatasync"):
            faults.setattr(os, name, ends(name))
        faults.setattr(
            disk_files.DiskFiles, "note_failure", lambda files: None
        )  # the worker has ended
        with pytest.raises(OSError, match="ended"):
            await made.write(CHUNK + 5, b"n" * 2 * CHUNK)
            await made.sync()
    again = await all_disks(host, tmp_path).open(DISK)
    assert await content(again) == (old if nth <= 2 else new)
    await again.write(CHUNK + 5, b"n" * 2 * CHUNK)  # repeated by the kernel
    assert await content(again) == new


async def test_write_to_a_full_disk_fails_and_keeps_the_chunk(made, monkeypatch):
    real = os.pwritev

    def full(fd, parts, offset):
        if fd == made.fd:
            real(fd, [b"".join(parts)[:100]], offset)
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, parts, offset)

    with monkeypatch.context() as faults:
        faults.setattr(os, "pwritev", full)
        with pytest.raises(OSError, match="No space left"):
            await made.write(CHUNK, b"x" * CHUNK)
    assert await content(made) == fresh_content()
    await made.write(CHUNK, b"x" * CHUNK)
    assert await made.read(CHUNK, CHUNK) == b"x" * CHUNK


async def test_short_write_is_completed(made, monkeypatch):
    real = os.pwritev

    def short(fd, parts, offset):
        return real(fd, [b"".join(parts)[:100]] if fd == made.fd else parts, offset)

    monkeypatch.setattr(os, "pwritev", short)
    await made.write(CHUNK + 7, b"x" * 3 * CHUNK)
    truth = fresh_content()
    truth[CHUNK + 7 : 4 * CHUNK + 7] = b"x" * 3 * CHUNK
    assert await content(made) == truth


async def test_chunks_longer_than_a_read_are_copied_too(host, tmp_path):
    data = one_host.image_bytes(5 * geometry.MIB + 11, seed=9)
    image_id = one_host.OTHER
    blob_map = one_host.map_of(data, image_id, 4 * geometry.MIB)
    for kind, raw in (("IMAGE", data), ("CHUNK_MAP", blob_map)):
        host.blobs[base.Blob(image_id, base.BlobKind[kind])] = raw
    image = await host.mirrors.attach_image(image_id)
    one = await all_disks(host, tmp_path).make_disk(DISK, image)
    await one.write(3 * geometry.MIB, b"abc")
    truth = bytearray(data)
    truth[3 * geometry.MIB : 3 * geometry.MIB + 3] = b"abc"
    assert one.written_chunks == 1
    assert await content(one) == truth


# The set of disks


async def test_existing_disk_is_not_created_again(host, made, tmp_path):
    await made.write(0, b"kept")
    with pytest.raises(errors.Unusable, match="exists already"):
        await make(host, tmp_path)
    assert await made.read(0, 4) == b"kept"


@pytest.mark.parametrize("size_bytes", [len(DATA) - 1, 0, -5, 2**62])
async def test_invalid_disk_size_is_refused_and_leaves_no_files(host, tmp_path, size_bytes):
    with pytest.raises(errors.Unusable, match=DISK):
        await make(host, tmp_path, size_bytes)
    assert list((tmp_path / "disks").iterdir()) == []


async def test_dropped_disk_is_deleted_and_can_be_created_again(host, tmp_path):
    known = inodes.Inodes(inodes.keyed(bytes(inodes.KEY_BYTES)))
    every = disks.Disks(tmp_path / "disks", host.opened, inode_numbers=known)
    image = await host.mirrors.attach_image(one_host.IMAGE)
    one = await every.make_disk(DISK, image)
    assert list(known.disks.values()) == [DISK]
    await one.write(0, b"gone")
    await every.drop(DISK)
    assert (every.list_disks(), every.has_disk(DISK), list((tmp_path / "disks").iterdir())) == (
        [],
        False,
        [],
    )
    with pytest.raises(OSError, match="Bad file"):
        await one.write(0, b"x")
    assert not known.disks
    with pytest.raises(errors.Unusable, match="no such disk"):
        await every.drop(DISK)
    assert await content(await every.make_disk(DISK, image)) == DATA


async def test_disks_know_their_images(host, tmp_path):
    every = all_disks(host, tmp_path)
    await every.make_disk(DISK, await host.mirrors.attach_image(one_host.IMAGE))
    assert await every.disks_of_image(one_host.IMAGE) == [DISK]
    assert await every.disks_of_image(one_host.OTHER) == []
    assert every.list_base_images() == {one_host.IMAGE}


async def test_base_images_of_unopened_disks_are_listed(made, host, tmp_path):
    folder = tmp_path / "disks"
    assert all_disks(host, tmp_path).list_base_images() == {one_host.IMAGE}
    disk_files.state_path(folder, OTHER_DISK).write_bytes(b"no state")
    assert all_disks(host, tmp_path).list_base_images() == {one_host.IMAGE}
    disk_files.state_path(folder, DISK).write_bytes(b"")
    assert all_disks(host, tmp_path).list_base_images() == set()


async def test_files_are_private_to_the_agent(made, tmp_path):
    assert stat.S_IMODE((tmp_path / "disks").stat().st_mode) == 0o700
    assert stat.S_IMODE(os.fstat(made.fd).st_mode) == 0o600


async def test_data_of_a_disk_without_state_is_not_overwritten(host, made, tmp_path):
    await made.write(0, b"precious")
    disk_files.state_path(tmp_path / "disks", DISK).unlink()
    with pytest.raises(errors.Unusable, match="state is lost"):
        await make(host, tmp_path)
    assert disk_files.data_path(tmp_path / "disks", DISK).read_bytes()[:8] == b"precious"


async def test_interrupted_creation_can_be_repeated(host, tmp_path):
    every = all_disks(host, tmp_path)
    with disk_files.data_path(tmp_path / "disks", DISK).open("wb") as file:
        file.truncate(5)
    (tmp_path / "disks" / f".incoming-{DISK}").write_bytes(b"half")
    one = await every.make_disk(DISK, await host.mirrors.attach_image(one_host.IMAGE))
    assert await content(one) == DATA


async def test_interrupted_drop_can_be_repeated(host, made, tmp_path):
    disk_files.data_path(tmp_path / "disks", DISK).unlink()
    every = all_disks(host, tmp_path)
    with pytest.raises(errors.FormatError, match="is missing"):
        await every.open(DISK)
    await every.drop(DISK)
    assert every.list_disks() == []


@pytest.mark.parametrize("spoil", [lambda raw: raw[:-1], lambda raw: raw + b"\0", lambda raw: b""])
async def test_damaged_state_is_refused_and_not_modified(host, made, tmp_path, spoil):
    path = disk_files.state_path(tmp_path / "disks", DISK)
    path.write_bytes(spoil(path.read_bytes()))
    before = path.read_bytes()
    with pytest.raises(errors.FormatError, match=DISK):
        await all_disks(host, tmp_path).open(DISK)
    assert path.read_bytes() == before


async def test_state_of_another_disk_is_refused(host, made, tmp_path):
    folder = tmp_path / "disks"
    disk_files.state_path(folder, DISK).rename(disk_files.state_path(folder, OTHER_DISK))
    disk_files.data_path(folder, DISK).rename(disk_files.data_path(folder, OTHER_DISK))
    with pytest.raises(errors.FormatError, match=f"state of disk {DISK}"):
        await all_disks(host, tmp_path).open(OTHER_DISK)


async def test_image_with_a_changed_size_is_refused(host, made, tmp_path):
    host.mirrors.detach_image(one_host.IMAGE)
    host.add(DATA + b"more")
    with pytest.raises(errors.Unusable, match=r"had \d+ bytes when it was made"):
        await made.read(0, 5)


async def test_unsynced_chunks_are_synced_periodically(host, tmp_path, autojump_clock, nursery):
    every = all_disks(host, tmp_path)
    one = await every.make_disk(DISK, await host.mirrors.attach_image(one_host.IMAGE))
    nursery.start_soon(every.run)
    await one.write(0, b"x" * CHUNK)
    await trio.sleep(disks.SYNC_INTERVAL_S + 1)
    assert one.unsynced_chunks == 0
    nursery.cancel_scope.cancel()


@pytest.mark.expect_log(r"not the name of a disk's state")
async def test_foreign_files_are_ignored(host, tmp_path):
    every = all_disks(host, tmp_path)
    (tmp_path / "disks" / "notes.acdisk").write_text("mine")
    assert every.list_disks() == []


async def test_disk_reads_wait_in_the_table_of_all_guests(host, tmp_path, nursery):
    made = disks.Disks(tmp_path / "more", host.opened, BOOTS[0], reads=host.waiting)
    one = await made.make_disk(DISK, await host.mirrors.attach_image(one_host.IMAGE))
    host.source._delay, host.source._delay_s = range(1, 100), 0.2
    await one.write(0, b"x" * 10)  # a partial chunk, so the next read covers both
    async with trio.open_nursery() as readers:
        readers.start_soon(one.read, 0, 2 * CHUNK)
        await trio.testing.wait_all_tasks_blocked()
        assert len(host.waiting) == len(host.waiting.table) == 1
        readers.cancel_scope.cancel()
    assert len(host.waiting) == len(host.waiting.table) == 0
    await made.drop(DISK)
