# SPDX-License-Identifier: Apache-2.0
"""Disks restored from checkpoints: each byte is from the checkpoint or its image."""

import contextlib
import math
import stat
import threading
import types
import uuid

import pytest
import trio
import trio.testing

from acstor_agent.core.disks import disk_header
from acstor_agent.disks import checkpoint_client
from acstor_agent.disks import checkpoint_restore
from acstor_agent.disks import disk_files
from acstor_agent.disks import disks
from acstor_agent.disks import flatten_disks
from acstor_agent.disks import restore_files
from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.model import geometry
from tests.fakes import one_host
from tests.fakes import shown_checkpoints
from tests.fakes import vault_checkpoints

CHUNK = one_host.CHUNK
DATA = one_host.image_bytes(6 * CHUNK) + bytes(CHUNK) + one_host.image_bytes(777, seed=2)
SIZE = 10 * CHUNK + 512
CUT = geometry.Geometry(SIZE, CHUNK)
CHANGED = {
    1: one_host.image_bytes(CHUNK, seed=3),
    3: bytes(CHUNK),  # deleted by the guest
    7: one_host.image_bytes(CHUNK, seed=4),  # begins before the end of the image
    10: one_host.image_bytes(512, seed=5),
}
DISK = disk_header.parse_disk_id(str(uuid.UUID(int=7)))
ONE, TWO = "10.0.0.2:7205", "10.0.0.3:7205"
MIRROR = "/instances/_base/link"
"""Backing path of the disk; these tests never read it."""
AWAY = errors.SourceUnreachable("it", "h2", "silent")


def truth() -> bytes:
    data = bytearray(DATA.ljust(SIZE, b"\0"))
    for chunk_no, plain in CHANGED.items():
        data[chunk_no * CHUNK : chunk_no * CHUNK + len(plain)] = plain
    return bytes(data)


async def file_of(one) -> bytes:
    parts = [bytes(await one.read(at, CHUNK)) for at in range(0, one.size_bytes, CHUNK)]
    return b"".join(parts)


async def content(one) -> bytes:
    """Return the contents of the disk: its file over the image."""
    return shown_checkpoints.over(await file_of(one), DATA)


def cluster_of(one, chunk_no) -> int:
    """Return the cluster of a checkpoint's chunk that is not zeros."""
    own = [n for n, plain in CHANGED.items() if any(plain)]
    return one.size_bytes // CHUNK - len(own) + own.index(chunk_no)


class Worker:
    """The disks of one worker; the next worker finds the files that it left."""

    def __init__(self, host, folder, kept, boot=0) -> None:
        self.kept, self.link = kept, vault_checkpoints.Link(kept)
        self.disks = disks.Disks(
            folder / "disks", host.opened, bytes([boot] * 16), holder_connections=self.link
        )
        self.recovering = checkpoint_restore.CheckpointRestore(
            self.disks, host.mirrors, retry_s=0.05
        )


@pytest.fixture
async def host(tmp_path):
    async with one_host.one_host(tmp_path, data=DATA) as made:
        yield made


@pytest.fixture
def kept():
    return vault_checkpoints.StoredCheckpoint(one_host.IMAGE, CUT, CHANGED)


@pytest.fixture
def worker(host, tmp_path, kept):
    return Worker(host, tmp_path, kept)


@contextlib.asynccontextmanager
async def running(worker):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.recovering.run)
        yield
        nursery.cancel_scope.cancel()


async def until_whole(worker):
    with trio.fail_after(5):
        while not all(reported["is_complete"] for reported in worker.recovering.list_restored()):  # noqa: ASYNC110 - there is no event
            await trio.sleep(0.01)


async def test_disk_is_the_checkpoint_over_its_image(worker, kept):
    one = await worker.recovering.make_disk(kept.recovery(), MIRROR)
    assert (one.header.disk_id, one.lacking_chunks) == (DISK, 3)  # the fourth is zeros
    assert await content(one) == truth()
    assert one.lacking_chunks == 0


async def test_chunk_is_fetched_once_when_it_is_read(worker, kept):
    one = await worker.recovering.make_disk(kept.recovery(), MIRROR)
    assert len(worker.link.asked) == 1  # for the manifest
    await one.read(0, CHUNK)
    assert len(worker.link.asked) == 1
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(one.read, cluster_of(one, 1) * CHUNK + 5, 100)
    assert len(worker.link.asked) == 2 and not one._bringing


async def test_file_passes_qemu_img_check(worker, kept, tmp_path):
    one = await worker.recovering.make_disk(kept.recovery(), str(tmp_path / "mirror"))
    (tmp_path / "mirror").write_bytes(DATA)
    (tmp_path / "shown").write_bytes(await file_of(one))
    await trio.run_process(["qemu-img", "check", "-q", "-f", "qcow2", tmp_path / "shown"])
    convert = ["qemu-img", "convert", "-f", "qcow2", "-O", "raw"]
    await trio.run_process([*convert, tmp_path / "shown", tmp_path / "raw"])
    assert (tmp_path / "raw").read_bytes() == truth()


@pytest.mark.parametrize("backing", ["", "relative", "/a\0b", "/a\nb", "/" + "x" * 1023])
async def test_invalid_backing_path_is_refused(worker, kept, backing):
    with pytest.raises(errors.Unusable):
        await worker.recovering.make_disk(kept.recovery(), backing)
    assert worker.disks.list_disks() == [] and list(worker.disks.folder.iterdir()) == []


async def test_disk_size_that_is_no_multiple_of_a_sector_is_refused(host, tmp_path):
    cut = geometry.Geometry(SIZE + 1, CHUNK)
    worker = Worker(host, tmp_path, vault_checkpoints.StoredCheckpoint(one_host.IMAGE, cut, {}))
    with pytest.raises(errors.Unusable, match="not of whole sectors"):
        await worker.recovering.make_disk(worker.kept.recovery(), MIRROR)


async def test_restore_completes_in_the_background_and_deletes_the_key(worker, kept, tmp_path):
    async with running(worker):
        one = await worker.recovering.make_disk(kept.recovery(), MIRROR)
        path = tmp_path / f"disks/{DISK}.acrecovery"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        await until_whole(worker)
    worker.link.faults = {ONE: AWAY, TWO: AWAY}
    assert await content(one) == truth()
    assert vault_checkpoints.KEY.hex() not in path.read_text()
    assert not list((tmp_path / "disks").glob("*.acmanifest"))
    assert worker.recovering.list_restored() == [
        {
            "checkpoint_id": DISK,
            "instance_id": vault_checkpoints.INSTANCE,
            "image_id": one_host.IMAGE,
            "is_complete": True,
            "lacking_chunks": 0,
        }
    ]


async def test_next_worker_continues_the_restore(host, worker, kept, tmp_path):
    one = await worker.recovering.make_disk(kept.recovery(), MIRROR)
    await one.read(cluster_of(one, 1) * CHUNK, 10)
    following = Worker(host, tmp_path, kept)
    one = await following.disks.open(DISK)
    assert one.lacking_chunks == 2 and await content(one) == truth()
    async with running(following):
        await until_whole(following)
    assert await content(await Worker(host, tmp_path, kept).disks.open(DISK)) == truth()


@pytest.mark.expect_log("were not synced when the host went down")
async def test_chunks_lost_in_a_power_failure_are_fetched_from_the_holder_again(
    host, worker, kept, tmp_path
):
    await content(await worker.recovering.make_disk(kept.recovery(), MIRROR))
    one = await Worker(host, tmp_path, kept, boot=1).disks.open(DISK)
    assert one.lacking_chunks == 3 and await content(one) == truth()


@pytest.mark.parametrize(
    "fault", [AWAY, errors.ChunkMissing("it", "h2"), lambda data: data[:-1] + b"x", lambda _: b""]
)
async def test_next_holder_is_asked_if_one_fails_or_sends_invalid_data(worker, kept, fault):
    worker.link.faults[ONE] = fault
    assert await content(await worker.recovering.make_disk(kept.recovery(), MIRROR)) == truth()
    asked = [address for address, _ in worker.link.asked]
    # Once for the manifest and once for a chunk, then last; a silent holder only once.
    assert asked.count(ONE) == (1 if fault is AWAY else 2)


async def test_silent_holder_of_one_checkpoint_does_not_delay_another_one(
    worker, kept, monkeypatch
):
    get = worker.link.get

    async def silent(url, limit_bytes):
        if "ab" * 32 in url:
            await trio.sleep_forever()
        return await get(url, limit_bytes)

    monkeypatch.setattr(worker.link, "get", silent)
    late = kept.recovery(checkpoint_id=str(uuid.UUID(int=8)), manifest_name="ab" * 32)
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.recovering.make_disk, late, MIRROR)
            nursery.start_soon(worker.recovering.make_disk, late, MIRROR)  # waits for the first one
            await trio.testing.wait_all_tasks_blocked()
            assert (
                await content(await worker.recovering.make_disk(kept.recovery(), MIRROR)) == truth()
            )
            nursery.cancel_scope.cancel()
    assert not worker.recovering._changing


async def test_silent_holder_is_asked_last_for_a_while(worker, kept, mock_clock):
    worker.link.faults[ONE] = AWAY
    for number in (7, 8, 9):
        if number == 9:
            mock_clock.jump(checkpoint_client.REMEMBERED_S)
        recovery = kept.recovery(checkpoint_id=str(uuid.UUID(int=number)))
        await worker.recovering.make_disk(recovery, MIRROR)
    assert [address for address, _ in worker.link.asked] == [ONE, TWO, TWO, ONE, TWO]


async def test_overloaded_holder_is_not_silent_and_a_response_ends_silence(worker, kept):
    worker.link.faults[ONE] = errors.SourceOverloaded("it", "h2")
    await worker.recovering.make_disk(kept.recovery(), MIRROR)
    times = worker.link.times
    assert times.expected_s(ONE) == 0.0
    times.record_time(TWO, math.inf)
    times.record_time(ONE, math.inf)
    of = checkpoint_client.CheckpointClient(worker.link, kept.recovery())
    await of.fetch_manifest()
    assert (times.expected_s(ONE), times.expected_s(TWO)) == (math.inf, 0.0)


async def test_remembered_response_times_are_bounded():
    times = checkpoint_client.ResponseTimes()
    for number in range(checkpoint_client.REMEMBERED + 1):
        times.record_time(str(number), 1.0)
    assert len(times._noted) == checkpoint_client.REMEMBERED
    assert (times.expected_s("0"), times.expected_s("1")) == (0.0, 1.0)


async def test_connection_pools_to_holders_are_bounded():
    link = checkpoint_client.HolderConnections(types.SimpleNamespace(), 1.0)
    first = await link._pool_of("h0:1")
    for number in range(1, checkpoint_client.HOLDERS + 1):
        assert await link._pool_of("h0:1" if number == 5 else f"h{number}:1")
    assert len(link._pools) == checkpoint_client.HOLDERS and await link._pool_of("h0:1") is first
    await link.aclose()


async def test_slower_holder_is_asked_after_the_faster_one(worker, kept, monkeypatch):
    get, one = worker.link.get, await worker.recovering.make_disk(kept.recovery(), MIRROR)
    asked = []

    async def slow(url, limit_bytes):
        asked.append(ONE if ONE in url else TWO)
        if ONE in url:
            await trio.sleep_forever()
        return await get(url, limit_bytes)

    monkeypatch.setattr(worker.link, "get", slow)
    with trio.fail_after(10):
        assert await content(one) == truth()
    assert asked[:3] == [ONE, TWO, TWO]
    assert worker.link.times.expected_s(ONE) >= checkpoint_client.HEDGE_S


async def test_disk_larger_than_the_limit_of_the_server_is_refused(worker, kept):
    with pytest.raises(errors.Unusable, match=f"may have {SIZE - 1} at most"):
        await worker.recovering.make_disk(kept.recovery(), MIRROR, SIZE - 1)
    assert worker.disks.list_disks() == [] and list(worker.disks.folder.iterdir()) == []
    assert (
        await content(await worker.recovering.make_disk(kept.recovery(), MIRROR, SIZE)) == truth()
    )


async def test_other_disks_can_be_opened_while_tables_are_written(host, worker, kept):
    one = await worker.recovering.make_disk(kept.recovery(), MIRROR)
    may_end = threading.Event()

    def tables():
        assert may_end.wait(5)
        yield bytes(CHUNK)

    other = disk_header.parse_disk_id(str(uuid.UUID(int=8)))
    header = disk_header.DiskHeader(other, one_host.IMAGE, CUT, 0)
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.disks.create_disk, header, tables())
            await trio.testing.wait_all_tasks_blocked()
            assert await worker.disks.open(DISK) is one
            for change in (worker.disks.create_disk(header), worker.disks.drop(other)):
                with pytest.raises(errors.Unusable, match="is being made"):
                    await change
            may_end.set()
    assert worker.disks.has_disk(other)


async def test_chunk_that_no_holder_has_is_lost_and_not_read_from_the_image(worker, kept):
    one = await worker.recovering.make_disk(kept.recovery(), MIRROR)
    worker.link.faults = dict.fromkeys((ONE, TWO), errors.ChunkMissing("it", "a holder"))
    with pytest.raises(errors.ChunkLost):
        await one.read(cluster_of(one, 1) * CHUNK, 10)
    assert bytes(await one.read(0, 4)) == b"QFI\xfb"  # the tables are local


async def test_read_waits_for_unreachable_holders(worker, kept, autojump_clock):
    one = await worker.recovering.make_disk(kept.recovery(), MIRROR)
    worker.link.faults = {ONE: AWAY, TWO: AWAY}
    async with trio.open_nursery() as nursery:
        got = []

        async def read():
            got.append(bytes(await one.read(cluster_of(one, 1) * CHUNK, 10)))

        nursery.start_soon(read)
        await trio.sleep(2)
        worker.link.faults = {}
    assert got == [CHANGED[1][:10]]


async def test_read_fails_at_its_deadline_if_no_holder_comes_back(worker, kept, autojump_clock):
    one = await worker.recovering.make_disk(kept.recovery(), MIRROR)
    worker.link.faults = {ONE: AWAY, TWO: AWAY}
    with pytest.raises(errors.DeadlineExceeded, match="silent"):
        await one.read(cluster_of(one, 1) * CHUNK, 10)


@pytest.mark.expect_log("its checkpoint is incomplete on this host")
async def test_failed_chunks_are_fetched_when_holders_come_back(worker, kept, caplog):
    worker.link.deadline_s = 0.05
    one = await worker.recovering.make_disk(kept.recovery(), MIRROR)
    worker.link.faults = {ONE: AWAY, TWO: AWAY}
    async with running(worker):
        with trio.fail_after(5):
            while "its checkpoint is incomplete" not in caplog.text:  # noqa: ASYNC110 - there is no event
                await trio.sleep(0.01)
        assert one.checkpoint is not None
        worker.link.faults = {}
        await until_whole(worker)
    assert await content(one) == truth()


async def test_restored_disk_is_read_only(host, worker, kept, tmp_path):
    one = await worker.recovering.make_disk(kept.recovery(), MIRROR)
    following = await Worker(host, tmp_path, kept).disks.open(DISK)
    for each in (one, following):
        for at in (0, each.size_bytes - 512):
            with pytest.raises(OSError, match="Read-only"):
                await each.write(at, b"x" * 512)
    assert await content(one) == truth()


async def test_flatten_does_not_overwrite_chunks_of_the_checkpoint(host, worker, kept):
    one = await worker.recovering.make_disk(kept.recovery(), MIRROR)
    image = await host.mirrors.attach_image(one_host.IMAGE)

    async def report(done_bytes, total_bytes):
        pass

    await flatten_disks.flatten([one], image, host.chunks, report)
    assert await content(one) == truth()


async def test_repeated_restore_returns_the_same_disk(worker, kept):
    first = await worker.recovering.make_disk(kept.recovery(), MIRROR)
    assert await worker.recovering.make_disk(kept.recovery(), MIRROR) is first


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"instance_id": str(uuid.UUID(int=9))}, "another disk, instance or image"),
        ({"image_id": one_host.OTHER}, "another disk, instance or image"),
    ],
)
async def test_manifest_of_another_instance_or_image_is_refused(host, worker, kept, changed, why):
    host.add(DATA, one_host.OTHER)
    with pytest.raises(errors.Unusable, match=why):
        await worker.recovering.make_disk(kept.recovery(**changed), MIRROR)
    assert worker.disks.list_disks() == [] and list(worker.disks.folder.iterdir()) == []


async def test_image_that_changed_since_the_checkpoint_is_refused(host, tmp_path):
    host.blobs.clear()
    algo = chunk_map.OsHash("sha512", b"now")
    host.add(DATA)
    blob = next(blob for blob in host.blobs if blob.kind.value == ".acmap")
    host.blobs[blob] = one_host.map_of(DATA, os_hash=algo)
    kept = vault_checkpoints.StoredCheckpoint(
        one_host.IMAGE, CUT, CHANGED, chunk_map.OsHash("sha512", b"then")
    )
    with pytest.raises(errors.Unusable, match="has changed since then"):
        await Worker(host, tmp_path, kept).recovering.make_disk(kept.recovery(), MIRROR)


async def test_manifest_with_another_chunk_size_is_refused(host, tmp_path):
    cut = geometry.Geometry(SIZE, 2 * CHUNK)
    kept = vault_checkpoints.StoredCheckpoint(one_host.IMAGE, cut, {})
    with pytest.raises(errors.Unusable, match="its image has another size"):
        await Worker(host, tmp_path, kept).recovering.make_disk(kept.recovery(), MIRROR)


async def test_wrong_key_is_refused(worker, kept):
    with pytest.raises(errors.NotAuthenticated):
        await worker.recovering.make_disk(kept.recovery(key="ab" * 32), MIRROR)


async def test_manifest_that_no_holder_has_is_reported_lost(worker, kept):
    with pytest.raises(errors.ChunkLost):
        await worker.recovering.make_disk(kept.recovery(manifest_name="ab" * 32), MIRROR)


async def test_other_disk_with_the_same_id_is_not_touched(host, worker, kept):
    image = await host.mirrors.attach_image(one_host.IMAGE)
    await worker.disks.make_disk(DISK, image, SIZE)
    with pytest.raises(errors.Unusable, match="was not made from this checkpoint"):
        await worker.recovering.make_disk(kept.recovery(), MIRROR)
    assert await file_of(await worker.disks.open(DISK)) == DATA.ljust(SIZE, b"\0")


async def test_dropped_disk_leaves_no_files(worker, kept):
    await worker.recovering.make_disk(kept.recovery(), MIRROR)
    await worker.disks.drop(DISK)
    assert list(worker.disks.folder.iterdir()) == []


def leave(worker, kept):
    """Leave the files of a worker killed while it created the disk."""
    restore_files.write(worker.disks.folder, kept.recovery(), kept.manifest)
    disk_files.data_path(worker.disks.folder, DISK).write_bytes(b"half of its tables")


async def test_incomplete_files_of_a_killed_worker_are_removed(worker, kept):
    leave(worker, kept)
    async with running(worker):
        with trio.fail_after(5):
            while list(worker.disks.folder.iterdir()):  # noqa: ASYNC110 - there is no event
                await trio.sleep(0.01)


async def test_manifest_that_a_killed_worker_left_is_removed(host, worker, kept, tmp_path):
    async with running(worker):
        await worker.recovering.make_disk(kept.recovery(), MIRROR)
        await until_whole(worker)
    left = tmp_path / f"disks/{DISK}.acmanifest"
    left.write_bytes(kept.manifest)
    async with running(Worker(host, tmp_path, kept)):
        with trio.fail_after(5):
            while left.exists():  # noqa: ASYNC110 - there is no event
                await trio.sleep(0.01)


async def test_restore_succeeds_over_incomplete_files_of_a_killed_worker(worker, kept):
    leave(worker, kept)
    assert await content(await worker.recovering.make_disk(kept.recovery(), MIRROR)) == truth()


async def test_disk_without_its_manifest_is_refused(host, worker, kept, tmp_path):
    await worker.recovering.make_disk(kept.recovery(), MIRROR)
    (tmp_path / f"disks/{DISK}.acmanifest").unlink()
    with pytest.raises(errors.FormatError, match="manifest is missing"):
        await Worker(host, tmp_path, kept).disks.open(DISK)
