# SPDX-License-Identifier: Apache-2.0
"""Invalid maps and images: an error that names the file, and no wrong byte to any reader."""

import errno
import os
import pathlib
import shutil

import pytest

from acstor_common import errors
from acstor_common.model import geometry
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local

pytestmark = hosts.needs_fuse

CHUNK = geometry.DEFAULT_CHUNK_BYTES
IMAGE = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
OTHER = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12"


def errno_of(action, *args) -> int:
    with pytest.raises(OSError) as caught:
        action(*args)
    return caught.value.errno


def read(path: pathlib.Path, chunk_no: int) -> bytes:
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        return os.pread(file.fileno(), CHUNK, chunk_no * CHUNK)


def check_refused(agent: agents.Agent, said: str) -> None:
    """Check that the image is unusable, that the error says why, and that the agent runs on."""
    pid = agent.worker_pid()
    assert errno_of(os.stat, agent.image_path(IMAGE)) == errno.EIO
    with pytest.raises(errors.Unusable, match=said):
        agents.request(agent.control_socket, "attach-image", image_id=IMAGE)
    assert said in agent.log()
    status = agent.status()
    assert (status["images"], status["worker_pid"]) == ({}, pid)
    assert list((agent.folder / "state" / "maps").iterdir()) == []


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda raw: raw[:-1], "truncated"),
        (lambda raw: raw[:100], "truncated in the header"),
        (lambda raw: b"", "is empty"),
        (lambda raw: raw + b"!", "too long"),
        (lambda raw: os.urandom(len(raw)), "not a chunk map"),
        (lambda raw: raw[:300] + bytes([raw[300] ^ 1]) + raw[301:], "checksum does not match"),
        (lambda raw: raw[:8] + b"\x09" + raw[9:], "format version 9 is not known"),
    ],
)
def test_invalid_chunk_map_is_refused_until_it_is_replaced(images, start, spoil, said):
    images.add(local.random_bytes(5 * CHUNK), IMAGE)
    good = images.map_path(IMAGE).read_bytes()
    images.map_path(IMAGE).write_bytes(spoil(good))
    agent = start(read_deadline_s=2)
    check_refused(agent, said)
    images.map_path(IMAGE).write_bytes(good)
    assert agent.image_path(IMAGE).read_bytes() == images.path(IMAGE).read_bytes()


def test_chunk_map_of_another_image_is_refused(images, start):
    images.add(local.random_bytes(5 * CHUNK, seed=1), IMAGE)
    images.add(local.random_bytes(5 * CHUNK, seed=2), OTHER)
    shutil.copy(images.map_path(OTHER), images.map_path(IMAGE))
    agent = start()
    check_refused(agent, f"map of image {OTHER}, not of {IMAGE}")
    assert agent.image_path(OTHER).read_bytes() == images.path(OTHER).read_bytes()


@pytest.mark.parametrize("size_bytes", [0, 5 * CHUNK - 1, 5 * CHUNK + 1])
def test_image_whose_length_differs_from_its_map_is_refused(images, start, size_bytes):
    images.add(local.random_bytes(5 * CHUNK), IMAGE)
    os.truncate(images.path(IMAGE), size_bytes)
    check_refused(start(), f"it is for {5 * CHUNK} bytes, but {IMAGE}.raw")


def test_image_without_a_map_is_not_found(images, start):
    images.add(b"x" * 5000, IMAGE)
    images.map_path(IMAGE).unlink()
    assert errno_of(os.stat, start().image_path(IMAGE)) == errno.ENOENT


def test_map_without_an_image_is_not_found(images, start):
    images.add(b"x" * 5000, IMAGE)
    images.path(IMAGE).unlink()
    assert errno_of(os.stat, start().image_path(IMAGE)) == errno.ENOENT


def test_damaged_local_copy_of_a_map_is_fetched_again(images, start):
    data = local.random_bytes(5 * CHUNK)
    images.add(data, IMAGE)
    agent = start()
    agent.ctl("attach", IMAGE)
    agent.stop()
    kept = agent.folder / "state" / "maps" / f"{IMAGE}.acmap"
    kept.write_bytes(kept.read_bytes()[:-7])
    agent.start()
    agent.wait_ready()
    assert agent.image_path(IMAGE).read_bytes() == data
    assert "fetching it from the source again" in agent.log()
    assert kept.read_bytes() == images.map_path(IMAGE).read_bytes()


def test_partial_map_of_a_killed_worker_is_removed(images, start):
    data = local.random_bytes(5 * CHUNK)
    images.add(data, IMAGE)
    agent = start()
    maps = agent.folder / "state" / "maps"
    (maps / ".incoming-abcdefgh").write_bytes(b"half a ")
    hosts.kill(agent.worker_pid())
    agent.wait_ready()
    assert agent.image_path(IMAGE).read_bytes() == data
    assert [path.name for path in maps.iterdir()] == [f"{IMAGE}.acmap"]


def test_corrupt_chunk_fails_with_eio_and_other_chunks_are_read(images, start):
    data = local.random_bytes(20 * CHUNK)
    images.add(data, IMAGE)
    with images.path(IMAGE).open("r+b") as file:
        file.seek(7 * CHUNK + 5)
        file.write(b"forged")
    agent = start(read_deadline_s=0.7, variants="no-read-ahead")
    path = agent.image_path(IMAGE)
    assert errno_of(read, path, 7) == errno.EIO
    for chunk_no in (*range(7), *range(8, 20)):
        assert read(path, chunk_no) == data[chunk_no * CHUNK : (chunk_no + 1) * CHUNK]
    assert "instead of" in agent.log() and f"{IMAGE}.raw" in agent.log()
    assert agent.status()["images"][IMAGE]["failed_reads"] >= 1
    images.path(IMAGE).write_bytes(data)
    assert read(path, 7) == data[7 * CHUNK : 8 * CHUNK]


def test_image_truncated_in_use_fails_only_past_its_new_end(images, start):
    data = local.random_bytes(20 * CHUNK)
    images.add(data, IMAGE)
    agent = start(read_deadline_s=0.7, variants="no-read-ahead")
    path = agent.image_path(IMAGE)
    assert read(path, 15) == data[15 * CHUNK : 16 * CHUNK]
    os.truncate(images.path(IMAGE), 10 * CHUNK)
    assert read(path, 9) == data[9 * CHUNK : 10 * CHUNK]
    assert errno_of(read, path, 12) == errno.EIO
    assert read(path, 15) == data[15 * CHUNK : 16 * CHUNK]


def test_image_deleted_in_use_stays_readable_but_cannot_be_attached_again(images, start):
    data = local.random_bytes(4 * CHUNK)
    images.add(data, IMAGE)
    agent = start()
    with agent.image_path(IMAGE).open("rb", buffering=0) as guest:
        assert os.pread(guest.fileno(), len(data), 0) == data
        images.path(IMAGE).unlink()
        images.map_path(IMAGE).unlink()
        os.posix_fadvise(guest.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(guest.fileno(), len(data), 0) == data
    agent.ctl("detach", IMAGE)
    assert (
        errno_of(open, agent.image_path(IMAGE)) == errno.EIO
    )  # an empty folder may be an unmounted one
    images.add(data, OTHER)
    assert errno_of(open, agent.image_path(IMAGE)) == errno.ENOENT


def test_symlink_in_place_of_an_image_is_not_followed(images, start, tmp_path):
    images.add(b"x" * 5000, IMAGE)
    secret = tmp_path / "secret"
    images.path(IMAGE).rename(secret)
    images.path(IMAGE).symlink_to(secret)
    assert errno_of(os.stat, start().image_path(IMAGE)) == errno.ENOENT
