# SPDX-License-Identifier: Apache-2.0
"""Writable disks on a real mount, as guests, libvirt and operators use them."""

import errno
import json
import mmap
import os
import pathlib
import random
import shutil
import stat
import subprocess
import uuid

import pytest

from acstor_agent.core.disks import disk_header
from acstor_common import errors
from acstor_common.model import geometry
from tests.fakes import disk_writers
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local

pytestmark = hosts.needs_fuse

MIB = geometry.MIB
CHUNK = geometry.DEFAULT_CHUNK_BYTES
DATA = local.random_bytes(3 * MIB + 4097, zero_share=0.2)
SIZE = 4 * MIB
UNKNOWN = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"


def disk_path(agent: agents.Agent, disk_id: str) -> pathlib.Path:
    return agent.mount_point / "disks" / f"{disk_id}.raw"


def make(agent: agents.Agent, image_id: str, size_bytes: int | None = SIZE) -> pathlib.Path:
    disk_id = str(uuid.uuid4())
    fields = {} if size_bytes is None else {"size_bytes": size_bytes}
    made = agents.request(
        agent.control_socket, "make-disk", disk_id=disk_id, image_id=image_id, **fields
    )
    assert made["path"] == str(disk_path(agent, disk_id))
    return pathlib.Path(made["path"])


def mark_of(agent: agents.Agent, disk: pathlib.Path) -> int:
    state = agent.folder / "state" / "disks" / f"{disk.stem}.acdisk"
    return state.read_bytes()[disk_header.AT_MARKS]


def errno_of(action, *args, **kwargs) -> int:
    with pytest.raises(OSError) as caught:
        action(*args, **kwargs)
    return caught.value.errno


def read_direct(path: pathlib.Path) -> bytes:
    argv = ["dd", f"if={path}", "iflag=direct", "bs=1M", "status=none"]
    return subprocess.run(argv, check=True, capture_output=True, timeout=20).stdout


@pytest.fixture
def image_id(images):
    return images.add(DATA)


def test_new_disk_equals_its_image_and_ends_in_zeros(image_id, start):
    agent = start()
    path = make(agent, image_id)
    assert read_direct(path) == path.read_bytes() == DATA.ljust(SIZE, b"\0")
    assert path.stat().st_blocks == 0
    same = make(agent, image_id, None)
    assert same.read_bytes() == DATA


@pytest.mark.parametrize("flags", [0, os.O_DIRECT], ids=["buffered", "direct"])
def test_random_writes_and_reads_equal_those_of_a_plain_file(image_id, start, tmp_path, flags):
    path, plain = make(start(), image_id), tmp_path / "plain"
    plain.write_bytes(DATA.ljust(SIZE, b"\0"))
    tally = disk_writers.differ(path, plain, random.Random(7), flags, 300)
    assert tally == []
    subprocess.run(["cmp", path, plain], check=True)
    assert read_direct(path) == plain.read_bytes()


def test_writes_do_not_appear_in_the_image_or_other_disks(image_id, images, start):
    agent = start()
    one, other = make(agent, image_id), make(agent, image_id)
    with one.open("rb+") as file:
        file.write(b"mine" * CHUNK)
    assert other.read_bytes()[: len(DATA)] == DATA
    assert agent.image_path(image_id).read_bytes() == DATA == images.path(image_id).read_bytes()


def test_write_of_whole_chunks_does_not_read_the_source(image_id, start):
    agent = start()
    with make(agent, image_id).open("rb+", buffering=0) as file:
        file.write(os.urandom(8 * CHUNK))
        os.fsync(file.fileno())
        assert agent.status()["exchange"]["source_bytes"] == 0
        os.pwrite(file.fileno(), b"part", 9 * CHUNK + 5)
    assert agent.status()["exchange"]["source_bytes"] == CHUNK


def test_writes_through_a_shared_mapping_reach_the_disk(image_id, start, tmp_path):
    path = make(start(), image_id)
    code = (
        "import mmap, sys; f = open(sys.argv[1], 'rb+'); m = mmap.mmap(f.fileno(), 0);"
        "m[70000:70005] = b'hello'; m.flush()"
    )
    subprocess.run(["python3", "-c", code, path], check=True, timeout=20)
    assert read_direct(path) == (DATA[:70000] + b"hello" + DATA[70005:]).ljust(SIZE, b"\0")


@pytest.mark.parametrize("engine", ["psync", "libaio"])
@pytest.mark.parametrize("flag", ["dsync", "sync"])
def test_write_to_a_synchronous_opening_is_synced(image_id, start, engine, flag):
    """The kernel syncs after a write with O_DSYNC, but not after an asynchronous direct one."""
    agent = start()
    path = make(agent, image_id)
    argv = ["fio", "--name=write", f"--filename={path}", "--rw=write", "--bs=64k", "--size=64k"]
    flags = [f"--ioengine={engine}", "--direct=1", f"--sync={flag}"]
    subprocess.run([*argv, *flags], check=True, timeout=20, stdout=subprocess.DEVNULL)
    assert mark_of(agent, path) == disk_header.WRITTEN


@pytest.mark.parametrize("flags", [0, os.O_DIRECT], ids=["buffered", "direct"])
def test_write_with_rwf_dsync_is_synced(image_id, start, flags):
    agent = start()
    path = make(agent, image_id)
    disk, view = os.open(path, os.O_RDWR | flags), mmap.mmap(-1, CHUNK)
    try:
        assert os.pwritev(disk, [view], 0, os.RWF_DSYNC) == CHUNK
    finally:
        os.close(disk)
    assert mark_of(agent, path) == disk_header.WRITTEN


def test_length_of_a_disk_cannot_be_changed(image_id, start):
    path = make(start(), image_id)
    with path.open("rb+", buffering=0) as file:
        assert errno_of(os.ftruncate, file.fileno(), 5) == errno.EPERM
        assert errno_of(os.pwrite, file.fileno(), b"x", SIZE) == errno.EFBIG
        os.ftruncate(file.fileno(), SIZE)
    assert errno_of(path.open, "wb") == errno.EPERM
    assert path.stat().st_size == SIZE
    assert path.read_bytes()[: len(DATA)] == DATA


def test_owner_and_mode_set_by_libvirt_survive_a_restart(image_id, start):
    agent = start()
    path = make(agent, image_id)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    os.chown(path, 64055, 108)
    path.chmod(0o640)
    os.utime(path, ns=(1, 10**18))
    for _ in range(2):
        seen = path.stat()
        assert (seen.st_uid, seen.st_gid, stat.S_IMODE(seen.st_mode)) == (64055, 108, 0o640)
        assert seen.st_mtime_ns == 10**18
        agent.stop()
        agent.start()
        agent.wait_ready()
    argv = ["setpriv", "--reuid=64055", "--regid=108", "--clear-groups"]
    folder = path.parents[4]
    if any(not parent.stat().st_mode & 0o001 for parent in [folder, *folder.parents]):
        return  # other users cannot reach this folder on this machine
    subprocess.run(
        [*argv, "dd", f"of={path}", "if=/dev/zero", "conv=notrunc", "count=1"], check=True
    )


def test_images_stay_read_only(image_id, start):
    path = start().image_path(image_id)
    assert errno_of(path.open, "rb+") == errno.EROFS
    assert errno_of(os.chown, path, 1, 1) == errno.EROFS


def test_fsync_works_on_disks_after_an_fsync_of_an_image(image_id, start):
    agent = start()
    with agent.image_path(image_id).open("rb") as image:
        os.fsync(image.fileno())
    path = make(agent, image_id)
    with path.open("rb+", buffering=0) as file:
        file.write(b"x" * CHUNK)
        assert agent.status()["disks"][path.stem]["unsynced_bytes"] == CHUNK
        os.fsync(file.fileno())
        assert agent.status()["disks"][path.stem]["unsynced_bytes"] == 0


def test_unknown_disk_is_not_found(image_id, start):
    agent = start()
    for name in (f"{image_id}.raw", f"{uuid.uuid4()}.raw", "x.raw", "x", str(uuid.uuid4())):
        assert errno_of(os.stat, agent.mount_point / "disks" / name) == errno.ENOENT
    assert os.listdir(agent.mount_point / "disks") == []


def test_disk_of_an_unknown_image_is_not_created(start):
    agent = start()
    with pytest.raises(errors.Unusable, match=UNKNOWN):
        make(agent, UNKNOWN)
    assert agent.status()["disks"] == {}


def test_missing_image_fails_only_reads_of_unwritten_chunks(image_id, images, start):
    agent = start(lost_after_s=0)
    path = make(agent, image_id)
    with path.open("rb+") as file:
        file.write(b"x" * CHUNK)
    agent.stop()
    shutil.rmtree(agent.folder / "state" / "maps")
    shutil.rmtree(agent.folder / "cache")
    for file in images.folder.iterdir():
        file.unlink()
    (images.folder / "another").touch()  # reads wait while the folder is empty
    agent.start()
    agent.wait_ready()
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    with os.fdopen(fd, "rb", buffering=0) as file:
        assert os.pread(file.fileno(), CHUNK, 0) == b"x" * CHUNK
        assert errno_of(os.pread, file.fileno(), 4096, 2 * CHUNK) == errno.EIO


def test_control_socket_creates_shows_and_drops_disks(image_id, start):
    agent = start()
    disk_id = str(uuid.uuid4())
    made = json.loads(agent.ctl("--json", "make-disk", disk_id, image_id, "--size", str(SIZE)))
    path = pathlib.Path(made["path"])
    assert made == {
        "disk_id": disk_id, "image_id": image_id, "size_bytes": SIZE, "path": str(path)
    }  # fmt: skip
    with path.open("rb+", buffering=0) as file:
        file.write(b"x")
        assert agent.status()["disks"][disk_id]["written_bytes"] == CHUNK
        assert disk_id in agent.ctl("status")
        with pytest.raises(errors.Unusable, match=rf"open in processes \[{os.getpid()}\]"):
            agents.request(agent.control_socket, "drop-disk", disk_id=disk_id)
        assert os.pread(file.fileno(), 2, 0) == b"x" + DATA[1:2]
    with pytest.raises(errors.Unusable, match="exists already"):
        agents.request(agent.control_socket, "make-disk", disk_id=disk_id, image_id=image_id)
    with pytest.raises(errors.Unusable, match=rf"is the base of disks \['{disk_id}'\]"):
        agents.request(agent.control_socket, "detach-image", image_id=image_id)
    agent.ctl("drop-disk", disk_id)
    assert errno_of(os.stat, path) == errno.ENOENT
    assert list((agent.folder / "state" / "disks").iterdir()) == []
    agents.request(agent.control_socket, "make-disk", disk_id=disk_id, image_id=image_id)
    assert path.read_bytes() == DATA
    agent.ctl("drop-disk", disk_id)
    agent.ctl("detach", image_id)


@pytest.mark.parametrize(
    "fields",
    [
        {"disk_id": "x", "image_id": UNKNOWN},
        {"disk_id": "../../etc", "image_id": UNKNOWN},
        {"disk_id": UNKNOWN},
        {"disk_id": UNKNOWN, "image_id": UNKNOWN, "size_bytes": "1"},
        {"disk_id": UNKNOWN, "image_id": "IMAGE", "size_bytes": 1},
        {"disk_id": UNKNOWN, "image_id": "IMAGE", "size_bytes": -1},
        {"disk_id": UNKNOWN, "image_id": "IMAGE", "size_bytes": 2**80},
    ],
)
def test_invalid_request_for_a_disk_creates_nothing(image_id, start, fields):
    agent = start()
    pid = agent.worker_pid()
    if fields.get("image_id") == "IMAGE":
        fields = {**fields, "image_id": image_id}
    with pytest.raises(errors.Unusable):
        agents.request(agent.control_socket, "make-disk", **fields)
    assert (agent.status()["disks"], agent.worker_pid()) == ({}, pid)
    assert list((agent.folder / "state" / "disks").iterdir()) == []


def test_peers_get_bytes_of_the_image_and_never_of_a_disk(tmp_path, images, image_id):
    with hosts.cloud(tmp_path, images, ("h1", "h2")) as cloud:
        path = make(cloud["h1"], image_id)
        with path.open("rb+", buffering=0) as file:
            for at in range(0, len(DATA), CHUNK // 2):
                os.pwrite(file.fileno(), b"secret", at)
        assert cloud["h2"].image_path(image_id).read_bytes() == DATA
        assert all(
            status["exchange"]["invalid_chunks"] == 0 for status in cloud.statuses().values()
        )


@pytest.mark.skipif(shutil.which("qemu-img") is None, reason="needs qemu-img")
def test_qemu_uses_a_disk_as_a_raw_file(image_id, start):
    path = make(start(), image_id)
    commands = ["write -P 7 100k 4k", "flush", "read -P 7 100k 4k", "write -z 1M 128k"]
    argv = ["qemu-io", "-f", "raw", "-t", "none", *(w for c in commands for w in ("-c", c)), path]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0 and "failed" not in done.stdout, done.stdout + done.stderr
    truth = bytearray(DATA.ljust(SIZE, b"\0"))
    truth[100 * 1024 : 104 * 1024] = b"\7" * 4096
    truth[MIB : MIB + 128 * 1024] = bytes(128 * 1024)
    assert path.read_bytes() == truth
