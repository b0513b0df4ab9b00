# SPDX-License-Identifier: Apache-2.0
"""A cache folder that is read-only, missing or broken: guests are served, and caching resumes."""

import pathlib
import resource
import subprocess
from collections.abc import Iterator

import pytest

from acstor_common.model import geometry
from tests.fakes import file_systems
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local

pytestmark = hosts.needs_fuse

MIB = geometry.MIB
DATA = local.random_bytes(4 * MIB)
MORE = DATA[::-1]


@pytest.fixture
def disk(tmp_path) -> Iterator[pathlib.Path]:
    with file_systems.small_disk(tmp_path / "disk", 64 << 20) as folder:
        yield folder


def mount(folder: pathlib.Path, options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)


def remount(folder: pathlib.Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", folder], check=True)


def read_direct(path: pathlib.Path) -> bytes:
    """Read all of a file past the page cache."""
    argv = ["dd", f"if={path}", "iflag=direct", "bs=1M", "status=none"]
    return subprocess.run(argv, check=True, capture_output=True, timeout=20).stdout


def from_cache(agent: agents.Agent) -> int:
    return agent.status()["read"]["cache"]["bytes"]


def trouble_of(agent: agents.Agent) -> dict | None:
    return agent.status()["cache"]["fault"]


def wait_well(agent: agents.Agent) -> None:
    hosts.wait_until(lambda: trouble_of(agent) is None, "a cache without trouble", 15)


def assert_cached(agent: agents.Agent, image_id: str, data: bytes) -> None:
    """Check that a read image is cached, and then read from the cache."""
    path = agent.image_path(image_id)
    assert read_direct(path) == data
    hosts.wait_written(agent)
    before = from_cache(agent)
    assert read_direct(path) == data
    assert from_cache(agent) - before == len(data)


def test_worker_starts_and_reads_from_a_read_only_cache(tmp_path, images, disk):
    known, unknown = images.add(DATA), images.add(MORE)
    options = {"cache_dir": disk / "cache", "cache_limit_bytes": 256 * MIB}
    with hosts.running(tmp_path / "h1", images, **options) as agent:
        assert_cached(agent, known, DATA)
        agent.stop()
        remount(disk, "ro")
        agent.start()
        agent.wait_ready()
        pid = agent.worker_pid()
        before = from_cache(agent)
        assert read_direct(agent.image_path(known)) == DATA
        assert from_cache(agent) - before == len(DATA)
        for _ in range(2):
            assert read_direct(agent.image_path(unknown)) == MORE
        assert "Read-only file system" in trouble_of(agent)["what"]
        assert "Read-only file system" in agent.ctl("status")
        assert from_cache(agent) - before == len(DATA)
        remount(disk, "rw")
        wait_well(agent)
        assert_cached(agent, unknown, MORE)
        assert read_direct(agent.image_path(known)) == DATA
        assert agent.worker_pid() == pid
        assert agent.status()["images"][unknown]["failed_reads"] == 0


def test_guests_read_right_bytes_while_the_cache_cannot_be_written(tmp_path, images, disk):
    known, unknown = images.add(DATA), images.add(MORE)
    with hosts.running(tmp_path / "h1", images, cache_dir=disk / "cache") as agent:
        assert_cached(agent, known, DATA)
        pid, path = agent.worker_pid(), agent.image_path(unknown)
        assert path.stat().st_size == len(MORE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (MIB, resource.RLIM_INFINITY))
        for _ in range(3):
            assert read_direct(path) == MORE
            assert read_direct(agent.image_path(known)) == DATA
        assert "The cache takes no new chunks" in agent.log()
        assert "File too large" in agent.log()
        assert agent.status()["cache"]["write_errors"] > 0
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        wait_well(agent)
        assert_cached(agent, unknown, MORE)
        assert agent.worker_pid() == pid
        assert agent.status()["images"][unknown]["failed_reads"] == 0


@pytest.mark.parametrize("what", ["missing", "a file"])
def test_worker_starts_without_a_cache_folder_and_uses_it_once_it_exists(
    tmp_path, images, disk, what
):
    image_id = images.add(DATA)
    if what == "a file":
        (disk / "cache").touch()
    remount(disk, "ro")
    with hosts.running(tmp_path / "h1", images, cache_dir=disk / "cache") as agent:
        pid = agent.worker_pid()
        assert read_direct(agent.image_path(image_id)) == DATA
        assert trouble_of(agent)["what"].startswith(f"{disk}/cache: ")
        assert agent.status()["cache"]["stored_bytes"] == 0
        remount(disk, "rw")
        (disk / "cache").unlink(missing_ok=True)
        wait_well(agent)
        assert agent.worker_pid() == pid


def test_deleted_slab_files_cause_only_new_fetches(tmp_path, images, disk):
    image_id = images.add(DATA)
    with hosts.running(tmp_path / "h1", images, cache_dir=disk / "cache") as agent:
        assert_cached(agent, image_id, DATA)
        pid = agent.worker_pid()
        for path in (disk / "cache").glob("slab-*"):
            path.unlink()
        assert read_direct(agent.image_path(image_id)) == DATA  # they are still open
        agent.stop()
        agent.start()
        agent.wait_ready()
        assert read_direct(agent.image_path(image_id)) == DATA
        assert agent.status()["images"][image_id]["failed_reads"] == 0
        assert pid != agent.worker_pid()
