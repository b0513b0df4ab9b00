# SPDX-License-Identifier: Apache-2.0
"""A mirror as a guest, Nova and libvirt see it: the image's bytes in a read-only file."""

import ctypes
import errno
import mmap
import os
import random
import shutil
import stat
import subprocess
import sys
import time

import pytest

from acstor_common.model import geometry
from acstor_common.wire import control_client
from acstor_common.wire import control_wire
from tests.fakes import hosts
from tests.lab import local

pytestmark = hosts.needs_fuse

KIB, MIB = geometry.KIB, geometry.MIB
CHUNK = geometry.DEFAULT_CHUNK_BYTES
UNKNOWN = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
CLOSE_S = 5.0
needs_qemu = pytest.mark.skipif(shutil.which("qemu-img") is None, reason="needs qemu-img")


def errno_of(action, *args, **kwargs) -> int:
    with pytest.raises(OSError) as caught:
        action(*args, **kwargs)
    return caught.value.errno


@pytest.mark.parametrize("chunk_bytes", [16 * KIB, CHUNK, MIB, 4 * MIB])
def test_whole_image_equals_the_file(images, start, chunk_bytes):
    data = local.random_bytes(9 * MIB + 12345, zero_share=0.3)
    image_id = images.add(data, chunk_bytes=chunk_bytes)
    path = start().image_path(image_id)
    subprocess.run(["cmp", path, images.path(image_id)], check=True)
    assert hosts.read_direct(path, 0, 10 * MIB) == data


def test_image_of_any_length_reads_to_its_end(images, start):
    agent = start()
    for size_bytes in (1, 4095, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 4097):
        data = local.random_bytes(size_bytes, seed=size_bytes)
        path = agent.image_path(images.add(data))
        assert path.stat().st_size == size_bytes
        assert hosts.read_direct(path, 0, 4 * CHUNK) == data
        assert path.read_bytes() == data
        assert hosts.read_direct(path, 8 * CHUNK, 4096) == b""


def test_any_range_equals_that_of_the_file(images, start):
    data = local.random_bytes(5 * MIB + 777, zero_share=0.2)
    path = start(cache_limit_bytes=2 * MIB).image_path(images.add(data))
    rng = random.Random(5)
    with path.open("rb", buffering=0) as buffered:
        for _ in range(150):
            offset = rng.randrange(len(data) + CHUNK)
            length = rng.choice([1, 511, 4096, CHUNK, CHUNK + 1, 300 * KIB, 2 * MIB])
            assert os.pread(buffered.fileno(), length, offset) == data[offset : offset + length]
            start_4k, length_4k = offset // 4096 * 4096, -(-length // 4096) * 4096
            expected = data[start_4k : start_4k + length_4k]
            assert hosts.read_direct(path, start_4k, length_4k) == expected


def test_holes_of_a_sparse_image_are_not_fetched(images, start):
    data = bytearray(64 * MIB)
    data[40 * MIB : 40 * MIB + 5] = b"hello"
    image_id = images.add(bytes(data))
    agent = start()
    assert hosts.read_direct(agent.image_path(image_id), 0, 64 * MIB) == data
    status = agent.status()
    assert status["exchange"]["source_bytes"] == CHUNK
    assert status["read"]["zero"]["bytes"] == 64 * MIB - CHUNK


def test_equal_chunks_are_fetched_once(images, start):
    one = local.random_bytes(CHUNK, seed=1)
    image_id = images.add(one * 32)
    agent = start()
    assert hosts.read_direct(agent.image_path(image_id), 0, 32 * CHUNK) == one * 32
    assert agent.status()["exchange"]["source_bytes"] == CHUNK


def test_stat_shows_a_file_without_holes(images, start):
    image_id = images.add(local.random_bytes(16 * CHUNK))
    agent = start()
    assert agent.image_path(image_id).stat().st_blocks == 16 * CHUNK // 512
    fd = os.open(agent.image_path(image_id), os.O_RDONLY | os.O_DIRECT)
    with os.fdopen(fd):
        os.preadv(fd, [mmap.mmap(-1, 3 * CHUNK)], 0)
        assert agent.status()["images"][image_id]["cached_bytes"] == 3 * CHUNK
    seen = os.stat(agent.image_path(image_id))
    assert stat.S_IMODE(seen.st_mode) == 0o440
    assert stat.S_ISREG(seen.st_mode)
    assert (seen.st_uid, seen.st_nlink) == (0, 1)
    assert seen.st_blksize == CHUNK


def test_tar_with_hole_detection_archives_every_byte_of_an_uncached_image(images, start, tmp_path):
    data = local.random_bytes(16 * CHUNK)
    image_id = images.add(data)
    path, archive = start().image_path(image_id), tmp_path / "image.tar"
    subprocess.run(["tar", "-C", path.parent, "-cSf", archive, path.name], check=True)
    unpacked = subprocess.run(["tar", "-xOf", archive], check=True, capture_output=True).stdout
    assert unpacked == data


def test_cached_chunks_survive_a_restart(images, start):
    image_id = images.add(local.random_bytes(16 * CHUNK))
    agent = start()
    hosts.read_direct(agent.image_path(image_id), 0, 4 * CHUNK)
    agent.stop()
    agent.start()
    agent.wait_ready()
    agent.image_path(image_id).stat()  # attaches it
    assert agent.status()["images"][image_id]["cached_bytes"] == 4 * CHUNK


def test_folder_lists_only_opened_and_attached_images(images, start):
    opened, ensured, other = (images.add(local.random_bytes(CHUNK, seed=n)) for n in range(3))
    agent = start()
    folder = agent.mount_point / "images"
    assert sorted(os.listdir(agent.mount_point)) == ["disks", "images"]
    assert os.listdir(folder) == []
    agent.image_path(opened).read_bytes()
    agent.ctl("attach", ensured)
    assert sorted(os.listdir(folder)) == sorted([f"{opened}.raw", f"{ensured}.raw"])
    assert other not in agent.status()["images"]
    with os.scandir(folder) as entries:
        assert all(entry.is_file() and entry.stat().st_size == CHUNK for entry in entries)


def list_part(fd: int) -> list[str]:
    """Return the next entries of an open folder, a page of them."""
    page = ctypes.create_string_buffer(4096)
    length = ctypes.CDLL(None, use_errno=True).getdents64(fd, page, len(page))
    names, at = [], 0
    while at < length:
        entry_bytes = int.from_bytes(page.raw[at + 16 : at + 18], sys.byteorder)
        names.append(page.raw[at + 19 : at + entry_bytes].split(b"\0")[0].decode())
        at += entry_bytes
    return names


def test_listing_shows_each_remaining_image_once_while_others_are_detached(images, start):
    agent = start()
    image_ids = [images.add(local.random_bytes(4096, seed=n)) for n in range(60)]
    for image_id in image_ids:
        agent.image_path(image_id).read_bytes()
    fd = os.open(agent.mount_point / "images", os.O_RDONLY)
    try:
        seen = list_part(fd)
        assert 0 < len(seen) < 30
        for image_id in image_ids[:30]:
            control_client.send(str(agent.control_socket), control_wire.DetachImage(image_id))
        while part := list_part(fd):
            seen += part
    finally:
        os.close(fd)
    assert len(seen) == len(set(seen))
    assert set(seen) >= {f"{image_id}.raw" for image_id in image_ids[30:]}


def test_name_without_an_image_is_refused_at_once(images, start):
    images.add(b"an image, since an empty folder may be one that was not mounted")
    agent = start()
    for name in (
        f"{UNKNOWN}.raw",
        UNKNOWN,
        f"{UNKNOWN}.acmap",
        f"{UNKNOWN}.RAW",
        f"{UNKNOWN.upper()}.raw",
        "..raw",
        ".raw",
        "hello",
        "\udcff.raw",
        "x" * 255,
    ):
        began = time.monotonic()
        assert errno_of(os.stat, agent.mount_point / "images" / name) == errno.ENOENT
        assert errno_of(open, agent.mount_point / name) == errno.ENOENT
        assert time.monotonic() - began < 5


def test_image_added_later_is_found(images, start):
    path = start().image_path(UNKNOWN)
    assert errno_of(os.stat, path) == errno.EIO  # an empty folder may be an unmounted one
    images.add(b"another one")
    assert not path.exists()
    images.add(b"now" * 5000, UNKNOWN)
    assert path.read_bytes() == b"now" * 5000


def test_mirror_is_read_only(images, start):
    path = start().image_path(images.add(b"x" * 5000))
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC, os.O_WRONLY | os.O_APPEND):
        assert errno_of(os.open, path, flags) == errno.EROFS
    assert errno_of(os.truncate, path, 0) == errno.EROFS
    assert errno_of(os.truncate, path, 10_000) == errno.EROFS
    assert errno_of(os.chown, path, 1, 1) == errno.EROFS
    assert errno_of(os.chmod, path, 0o666) == errno.EROFS
    assert path.read_bytes() == b"x" * 5000


def test_names_in_the_mirror_cannot_be_changed(images, start):
    agent = start()
    path = agent.image_path(images.add(b"x" * 5000))
    assert path.read_bytes() == b"x" * 5000
    for folder in (path.parent, agent.mount_point / "disks", agent.mount_point):
        new = folder / "new"
        for action, *args in (
            (os.open, new, os.O_CREAT | os.O_WRONLY),
            (os.mknod, new),
            (os.mkdir, new),
            (os.symlink, "target", new),
            (os.link, path, new),
            (os.rename, path, new),
        ):
            assert errno_of(action, *args) == errno.EROFS, (action.__name__, folder)
    assert errno_of(os.unlink, path) == errno.EROFS
    assert errno_of(os.rmdir, path.parent) == errno.EROFS
    assert errno_of(os.chmod, path.parent, 0o777) == errno.EROFS
    assert path.read_bytes() == b"x" * 5000


def test_errno_of_wrong_names_is_that_of_any_file_system(images, start):
    """The cases are those of pjdfstest, which itself needs a writable file system."""
    path = start().image_path(images.add(b"x" * 5000))
    folder, missing = path.parent, path.parent / "missing"
    for wanted, action, *args in (
        (errno.EEXIST, os.open, path, os.O_CREAT | os.O_EXCL | os.O_RDONLY),
        (errno.EEXIST, os.mkdir, folder),
        (errno.EEXIST, os.mkfifo, path),
        (errno.ENOTDIR, os.open, path / "child", os.O_RDONLY),
        (errno.ENOTDIR, os.mkdir, path / "child"),
        (errno.ENOTDIR, os.rmdir, path),
        (errno.ENAMETOOLONG, os.stat, folder / ("x" * 256)),
        (errno.ENAMETOOLONG, os.mkdir, folder / ("x" * 256)),
        (errno.ENOENT, os.stat, folder / ("x" * 255)),
        (errno.ENOENT, os.unlink, missing),
        (errno.ENOENT, os.rmdir, missing),
        (errno.ENOENT, os.rename, missing, path),
        (errno.EISDIR, os.open, folder, os.O_WRONLY),
        (errno.EISDIR, os.truncate, folder, 0),
        (errno.EROFS, os.mkfifo, missing),
        (errno.EROFS, os.lchown, path, 1, 1),
    ):
        assert errno_of(action, *args) == wanted, (action.__name__, args)
    with path.open("rb") as file:
        assert errno_of(os.ftruncate, file.fileno(), 0) == errno.EINVAL
        assert errno_of(os.write, file.fileno(), b"x") == errno.EBADF
        assert errno_of(os.posix_fallocate, file.fileno(), 0, 1) == errno.EBADF
    assert path.read_bytes() == b"x" * 5000


def test_timestamp_is_kept_over_restarts(images, start):
    agent = start()
    path = agent.image_path(images.add(b"x" * 5000))
    os.utime(path, ns=(1_700_000_000_123_456_789, 1_700_000_001_123_456_789))
    assert path.stat().st_mtime_ns == 1_700_000_001_123_456_789
    agent.stop()
    agent.start()
    agent.wait_ready()
    assert path.stat().st_mtime_ns == 1_700_000_001_123_456_789
    began_ns = time.time_ns()
    subprocess.run(["touch", "--no-create", path], check=True)
    assert path.stat().st_mtime_ns >= began_ns - 10**9


def test_statvfs_shows_the_cache(images, start):
    agent = start(cache_limit_bytes=64 * MIB)
    agent.image_path(images.add(local.random_bytes(MIB))).read_bytes()
    seen = os.statvfs(agent.mount_point)
    assert seen.f_frsize * seen.f_blocks == 64 * MIB
    assert 60 * MIB <= seen.f_frsize * seen.f_bavail < 61 * MIB  # a slab of 4 MiB is made


def test_extended_attributes_are_refused(images, start):
    path = start().image_path(images.add(b"x" * 5000))
    for name in ("security.selinux", "user.a", "trusted.libvirt.security.dac"):
        assert errno_of(os.getxattr, path, name) in (errno.EOPNOTSUPP, errno.ENODATA)
    assert errno_of(os.setxattr, path, "user.a", b"b") in (errno.EOPNOTSUPP, errno.EROFS)
    subprocess.run(["ls", "-laZ", path.parent], check=True, stdout=subprocess.DEVNULL)


def test_concurrent_readers_fetch_each_chunk_once(images, start):
    data = local.random_bytes(8 * MIB)
    image_id = images.add(data)
    agent = start()
    readers = [
        subprocess.Popen(["cmp", agent.image_path(image_id), images.path(image_id)])
        for _ in range(4)
    ]
    assert [reader.wait(20) for reader in readers] == [0] * 4
    assert agent.status()["exchange"]["source_bytes"] == len(data)


@needs_qemu
def test_qemu_uses_a_mirror_as_a_backing_file(images, start, tmp_path):
    data = local.random_bytes(6 * MIB + 512, zero_share=0.4)
    image_id = images.add(data)
    path = str(start().image_path(image_id))
    overlay = str(tmp_path / "disk.qcow2")

    def qemu_img(*argv: str) -> str:
        done = subprocess.run(["qemu-img", *argv], capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert '"virtual-size": 6291968' in qemu_img("info", "--output=json", "-f", "raw", path)
    qemu_img("create", "-f", "qcow2", "-F", "raw", "-b", path, overlay)
    qemu_img("compare", "-f", "qcow2", "-F", "raw", overlay, str(images.path(image_id)))
    converted = tmp_path / "converted.raw"
    qemu_img("convert", "-T", "none", "-f", "qcow2", "-O", "raw", overlay, str(converted))
    assert converted.read_bytes() == data


@needs_qemu
@pytest.mark.skipif(shutil.which("qemu-io") is None, reason="needs qemu-io")
def test_guests_writes_stay_in_the_overlay(images, start, tmp_path):
    data = local.random_bytes(MIB)
    image_id = images.add(data)
    path = start().image_path(image_id)
    overlay = tmp_path / "disk.qcow2"
    create = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", path, overlay]
    subprocess.run(create, check=True)
    commands = ["write -P 7 100k 4k", "read -P 7 100k 4k", "read -v 200k 1k"]
    argv = ["qemu-io", "-t", "none", *(w for c in commands for w in ("-c", c)), overlay]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0 and "failed" not in done.stdout, done.stdout + done.stderr
    assert path.read_bytes() == data == images.path(image_id).read_bytes()


def test_close_does_not_wait_for_a_frozen_agent(images, start):
    """QEMU closes a deleted server's base; if the close waited, SIGKILL would not end it."""
    agent = start()
    path = agent.image_path(images.add(local.random_bytes(MIB)))
    path.read_bytes()  # the agent gets only the first close of a mount
    command = ["sh", "-c", "exec 3<$0; echo open; read line; exec 3<&-", path]
    reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert reader.stdout.readline() == b"open\n"
    with hosts.frozen(agent.worker_pid()):
        reader.communicate(b"close\n", timeout=CLOSE_S)
    assert reader.returncode == 0
