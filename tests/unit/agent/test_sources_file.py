# SPDX-License-Identifier: Apache-2.0
import errno
import gc
import os
import threading
import time

import pytest
import trio
import trio.testing

from acstor_agent.sources import base
from acstor_agent.sources import file
from acstor_common import errors
from acstor_common.model import ids

BLOB = base.Blob(ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"), base.BlobKind.IMAGE)


def other_blob(number):
    return base.Blob(ids.ImageId(f"00000000-0000-0000-0000-{number:012d}"), base.BlobKind.IMAGE)


def open_files_below(folder):
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    paths = [os.readlink(link) for link in links if os.path.lexists(link)]
    return sum(path.startswith(f"{folder}/") for path in paths)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / BLOB.file_name
    path.write_bytes(b"0123456789")
    return path


@pytest.fixture
def source(tmp_path):
    return file.FileSource(str(tmp_path), open_files_limit=3)


async def test_read_past_the_end_is_missing_with_path_and_sizes(source, path):
    with pytest.raises(errors.ChunkMissing) as caught:
        await source.read(BLOB, 6, 8)
    assert str(caught.value) == (
        f"{BLOB.file_name} bytes 6-13 is not available from {path}: the file ends at byte 10"
    )


async def test_replaced_file_is_opened_again(source, path):
    assert await source.read(BLOB, 0, 3) == b"012"
    path.with_suffix(".new").write_bytes(b"abcdef")
    path.with_suffix(".new").rename(path)
    assert await source.read(BLOB, 0, 3) == b"abc"
    assert await source.size_bytes(BLOB) == 6


async def test_removed_file_is_missing_although_it_was_open(source, path):
    await source.read(BLOB, 0, 3)
    path.with_suffix(".other").touch()
    path.unlink()
    with pytest.raises(errors.ChunkMissing, match=r"there is no such file$") as caught:
        await source.read(BLOB, 0, 3)
    assert type(caught.value) is errors.ChunkMissing


@pytest.mark.parametrize("folder", ["empty", "gone", "not_a_folder"])
async def test_read_is_refused_while_the_file_system_is_not_mounted(tmp_path, folder):
    (tmp_path / "empty").mkdir()
    (tmp_path / "not_a_folder").touch()
    with pytest.raises(errors.ChunkRefused, match=r"mounted|not a folder"):
        await file.FileSource(str(tmp_path / folder)).read(BLOB, 0, 3)


async def test_symbolic_link_is_refused_also_inside_the_folder(source, path):
    path.rename(path.with_suffix(".elsewhere"))
    path.symlink_to(path.with_suffix(".elsewhere"))
    with pytest.raises(errors.ChunkMissing, match="symbolic link"):
        await source.read(BLOB, 0, 3)


async def test_link_that_replaces_an_open_file_is_refused(source, path):
    await source.read(BLOB, 0, 3)
    path.rename(path.with_suffix(".elsewhere"))
    path.symlink_to(path.with_suffix(".elsewhere"))
    with pytest.raises(errors.ChunkMissing, match="symbolic link"):
        await source.read(BLOB, 0, 3)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
async def test_non_regular_file_is_refused_without_blocking(source, path, make):
    path.unlink()
    make(path)
    with trio.fail_after(2), pytest.raises(errors.ChunkMissing, match="not a regular file"):
        await source.read(BLOB, 0, 3)
    with pytest.raises(errors.ChunkMissing, match="not a regular file"):
        await source.size_bytes(BLOB)


async def test_files_stay_open_between_reads_up_to_a_limit(source, path, tmp_path):
    for number in range(6):
        (tmp_path / other_blob(number).file_name).write_bytes(b"x")
        await source.read(other_blob(number), 0, 1)
    assert open_files_below(tmp_path) == 3
    await source.aclose()
    assert open_files_below(tmp_path) == 0


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
async def test_transient_error_is_unreachable_and_the_file_is_reopened(
    source, path, code, monkeypatch
):
    real_open = os.open
    opened = []

    def counting_open(name, flags, **kwargs):
        opened.append(name)
        return real_open(name, flags, **kwargs)

    def preadv(*args):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "open", counting_open)
    with monkeypatch.context() as broken:
        broken.setattr(os, "preadv", preadv)
        with pytest.raises(errors.SourceUnreachable, match=os.strerror(code)):
            await source.read(BLOB, 0, 3)
    assert await source.read(BLOB, 0, 3) == b"012"
    assert opened == [str(path)] * 2


async def test_short_read_is_continued_in_all_buffers(source, path, monkeypatch):
    real = os.preadv

    def three_bytes(fd, buffers, offset):
        return real(fd, [memoryview(buffers[0])[:3]], offset)

    monkeypatch.setattr(os, "preadv", three_bytes)
    assert await source.read(BLOB, 0, 10) == b"0123456789"
    reported = []
    pieces = [base.BlobPiece(1, 4), base.BlobPiece(5, 2), base.BlobPiece(7, 3)]
    await source.read_pieces(base.PieceRequest(BLOB, pieces, reported.extend))
    assert reported == [(0, b"1234"), (1, b"56"), (2, b"789")]


async def test_pieces_before_the_end_of_a_file_are_read(source, path):
    reported = []
    await source.read_pieces(
        base.PieceRequest(BLOB, [base.BlobPiece(6, 2), base.BlobPiece(8, 4)], reported.extend)
    )
    assert reported[0] == (0, b"67")
    assert str(reported[1][1]) == (
        f"{BLOB.file_name} bytes 6-11 is not available from {path}: the file ends at byte 10"
    )


async def test_many_chunks_are_read_in_one_call(source, path, monkeypatch):
    path.write_bytes(bytes(range(200)))
    calls, real = [], os.preadv
    monkeypatch.setattr(os, "preadv", lambda *args: calls.append(args) or real(*args))
    reported = []
    await source.read_pieces(
        base.PieceRequest(BLOB, [base.BlobPiece(2 * n, 2) for n in range(64)], reported.extend)
    )
    assert len(calls) == 1
    assert b"".join(data for _, data in reported) == bytes(range(128))
    await source.read_pieces(
        base.PieceRequest(BLOB, [base.BlobPiece(n, 1) for n in range(200)], reported.extend)
    )
    assert len(calls) == 1 + 4  # the kernel limits the buffers of a call


@pytest.fixture
def hinted(monkeypatch):
    """Ranges hinted to the kernel for readahead, in order."""
    seen = []

    def note(fd, offset, length, advice):
        assert advice == os.POSIX_FADV_WILLNEED
        seen.append((offset, length))

    monkeypatch.setattr(os, "posix_fadvise", note)
    return seen


async def begin(nursery, source, at, read):
    """Start reads of two bytes in order, and await none."""

    async def one(offset):
        read[offset] = await source.read(BLOB, offset, 2)

    for offset in at:
        nursery.start_soon(one, offset)
        await trio.testing.wait_all_tasks_blocked()


@pytest.fixture
def answers(monkeypatch):
    """Reads at offset 0 hang until this event is set."""
    answers, real = threading.Event(), os.preadv

    def preadv(fd, buffers, offset):
        if offset == 0:
            answers.wait(10)
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    yield answers
    answers.set()


async def test_sequential_reads_reach_the_kernel_in_order_across_threads(
    tmp_path, path, hinted, monkeypatch
):
    source = file.FileSource(str(tmp_path), order_s=10.0)
    late_s, read = [0.2, 0.15, 0.1, 0.05, 0.0], {}
    real = source._open
    monkeypatch.setattr(source, "_open", lambda *args: time.sleep(late_s.pop(0)) or real(*args))
    async with trio.open_nursery() as nursery:
        await begin(nursery, source, range(0, 10, 2), read)
    assert hinted == [(2, 2), (4, 2), (6, 2), (8, 2)]  # the first read follows no other
    assert read == {0: b"01", 2: b"23", 4: b"45", 6: b"67", 8: b"89"}


async def test_sequential_reads_are_hinted_while_another_read_is_in_flight(
    source, path, hinted, answers
):
    read = {}
    async with trio.open_nursery() as nursery:
        await begin(nursery, source, (0,), read)
        assert [await source.read(BLOB, at, 2) for at in (4, 6, 8)] == [b"45", b"67", b"89"]
        answers.set()
    assert hinted == [(6, 2), (8, 2)]


async def test_single_sequential_reader_gets_no_hints(source, path, hinted):
    assert [await source.read(BLOB, at, 2) for at in (0, 2, 4)] == [b"01", b"23", b"45"]
    assert hinted == []


async def test_hints_cover_the_read_in_steps_of_limited_size(source, path, hinted, answers):
    path.write_bytes(bytes(1 << 20))
    async with trio.open_nursery() as nursery:
        await begin(nursery, source, (0,), {})
        await source.read(BLOB, 2, 300_000)
        answers.set()
    step = file.HINT_BYTES
    assert hinted == [(2, step), (2 + step, step), (2 + 2 * step, 300_000 - 2 * step)]


async def test_hanging_read_delays_the_following_reads_only_briefly(source, path, answers):
    read = {}
    async with trio.open_nursery() as nursery:
        await begin(nursery, source, (0,), read)
        with trio.fail_after(5):
            assert await source.read(BLOB, 2, 2) == b"23"
        assert not read
        answers.set()


async def test_cancelled_read_does_not_delay_the_following_reads(tmp_path, path, answers):
    source, read = file.FileSource(str(tmp_path), order_s=10.0), {}
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as given_up:
                    await begin(given_up, source, (0,), read)
                    await begin(nursery, source, (2,), read)
                    assert not read
                    scope.cancel()
    assert read == {2: b"23"}


async def test_sequential_reads_keep_bounded_state(source, path, answers):
    path.write_bytes(bytes(1_000))
    read = {}
    async with trio.open_nursery() as nursery:
        await begin(nursery, source, (0,), read)
        for at in range(2, 1_000, 2):
            await source.read(BLOB, at, 2)
        gc.collect()
        turns = sum(isinstance(one, file._Turn) for one in gc.get_objects())
        answers.set()
    assert turns <= file.REMEMBERED + 1


async def test_file_system_without_hint_support_is_read(source, path, monkeypatch):
    def refuse(*args):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fadvise", refuse)
    read = {}
    async with trio.open_nursery() as nursery:
        await begin(nursery, source, (0, 2, 4), read)
    assert read == {0: b"01", 2: b"23", 4: b"45"}


async def test_read_from_a_hanging_server_can_be_cancelled(source, path, monkeypatch):
    answers = threading.Event()
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *args: answers.wait(10) and real(*args))
    try:
        with trio.move_on_after(0.05) as scope:
            await source.read(BLOB, 0, 3)
        assert scope.cancelled_caught
    finally:
        answers.set()
    assert await source.read(BLOB, 0, 3) == b"012"


async def test_reads_take_no_threads_of_the_default_limiter(source, path, monkeypatch):
    answers = threading.Event()
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *args: answers.wait(10) and real(*args))
    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(source.read, BLOB, 0, 3)
        await trio.testing.wait_all_tasks_blocked()
        try:
            assert trio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
            with trio.fail_after(2):
                assert await trio.to_thread.run_sync(lambda: 5) == 5
        finally:
            answers.set()


async def test_files_are_closed_only_in_threads(source, path, tmp_path, monkeypatch):
    """Closing a file of a hanging server hangs as well, and would block the event loop."""
    real, closers = os.close, []

    def close(fd):
        if os.readlink(f"/proc/self/fd/{fd}").startswith(f"{tmp_path}/"):
            closers.append(threading.current_thread())
        real(fd)

    monkeypatch.setattr(os, "close", close)
    for number in range(5):  # more than stay open
        (tmp_path / other_blob(number).file_name).write_bytes(b"x")
        await source.read(other_blob(number), 0, 1)
    with pytest.raises(errors.ChunkMissing):
        await source.read(other_blob(4), 0, 9)
    path.with_suffix(".new").write_bytes(b"abc")
    path.with_suffix(".new").rename(tmp_path / other_blob(4).file_name)
    await source.read(other_blob(4), 0, 1)
    gc.collect()  # the error's traceback held the replaced file; it is released here
    await source.aclose()
    assert len(closers) == 6
    assert threading.main_thread() not in closers


async def test_close_does_not_wait_for_a_hanging_server(source, path, monkeypatch):
    answers = threading.Event()
    real = os.close
    await source.read(BLOB, 0, 3)
    monkeypatch.setattr(os, "close", lambda fd: answers.wait(30) and real(fd))
    try:
        with trio.fail_after(15):
            await source.aclose()
    finally:
        answers.set()


@pytest.mark.parametrize("folder", [None, "", "relative/folder"])
def test_folder_must_be_absolute(folder):
    group = type("Group", (), {"folder": folder})
    with pytest.raises(errors.Unusable, match=r"\[source_file\] folder"):
        file.FileSource.from_conf(group)


async def test_image_in_a_glance_file_store_is_read_without_suffix(source, tmp_path):
    store = tmp_path / BLOB.image_id
    store.write_bytes(b"abcdef")
    assert await source.size_bytes(BLOB) == 6
    assert await source.read(BLOB, 2, 3) == b"cde"
    (tmp_path / BLOB.file_name).write_bytes(b"0123456789")  # a copy made for agents
    assert await source.read(BLOB, 2, 3) == b"234"
    with pytest.raises(errors.ChunkMissing, match="no such file"):
        await source.size_bytes(BLOB._replace(kind=base.BlobKind.CHUNK_MAP))
    store.unlink()
    (tmp_path / BLOB.file_name).unlink()
    store.symlink_to("/etc/passwd")
    with pytest.raises(errors.ChunkMissing, match="symbolic link"):
        await source.read(BLOB, 0, 3)
