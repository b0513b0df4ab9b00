# SPDX-License-Identifier: Apache-2.0
"""A full disk: reads stay right, caching stops, and resumes when there is space again."""

import contextlib
import errno
import os
import pathlib
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
DATA = local.random_bytes(24 * MIB)
LIMIT = 32 * MIB
"""More than the disks have; the cache grows by 2 MiB."""


@contextlib.contextmanager
def running(
    folder: pathlib.Path, images: local.ImageFolder, disk_bytes: int
) -> Iterator[tuple[agents.Agent, pathlib.Path]]:
    """Run an agent whose cache is on a disk of its own; yield it, and the disk."""
    with (
        file_systems.small_disk(folder / "disk", disk_bytes) as disk,
        hosts.running(
            folder / "h1", images, cache_dir=disk / "cache", cache_limit_bytes=LIMIT
        ) as agent,
    ):
        yield agent, disk


def read_direct(path: pathlib.Path) -> bytes:
    """Read all of a file past the page cache."""
    argv = ["dd", f"if={path}", "iflag=direct", "bs=1M", "status=none"]
    return subprocess.run(argv, check=True, capture_output=True, timeout=20).stdout


def test_full_disk_stops_only_caching(tmp_path, images):
    image_id = images.add(DATA)
    with running(tmp_path, images, 6 * MIB) as (agent, disk):
        path, pid = agent.image_path(image_id), agent.worker_pid()
        for _ in range(2):
            assert read_direct(path) == DATA
        hosts.wait_written(agent)
        cache = agent.status()["cache"]
        assert 3 * MIB < cache["disk_bytes"] < 6 * MIB
        assert cache["stored_bytes"] > 0
        assert cache["write_errors"] > 0
        assert "The cache stops growing" in agent.log()
        assert "No space left on device" in agent.log()
        assert agent.status()["images"][image_id]["failed_reads"] == 0
        subprocess.run(["mount", "-o", f"remount,size={64 * MIB}", disk], check=True)
        assert read_direct(path) == DATA
        assert agent.worker_pid() == pid


def test_disk_that_fills_up_during_prefetch_fails_no_read(tmp_path, images):
    image_id = images.add(DATA)
    with file_systems.small_disk(tmp_path / "disk", 6 * MIB) as disk:
        small = {
            "cache_dir": disk / "cache",
            "cache_limit_bytes": LIMIT,
            "variants": "unbounded-prefetch",
        }
        with hosts.cloud(
            tmp_path, images, ("h1", "h2"), each=lambda name: small if name == "h1" else {}
        ) as cloud:
            agent = cloud["h1"]
            agent.ctl("attach", image_id)
            pid = agent.worker_pid()
            assert read_direct(cloud["h2"].image_path(image_id)) == DATA

            def has_filled() -> bool:
                return agent.status()["cache"]["write_errors"] > 0

            hosts.wait_until(has_filled, "prefetches that fill the disk", 30)
            assert agent.status()["read"]["cache"]["bytes"] == 0  # no guest has read here yet
            assert read_direct(agent.image_path(image_id)) == DATA
            assert agent.status()["images"][image_id]["failed_reads"] == 0
            assert agent.worker_pid() == pid


def test_disk_filled_by_other_files_stops_caching(tmp_path, images):
    image_id = images.add(DATA)
    with running(tmp_path, images, 12 * MIB) as (agent, disk):
        with contextlib.suppress(OSError):
            (disk / "others").write_bytes(bytes(12 * MIB))
        assert read_direct(agent.image_path(image_id)) == DATA
        agent.stop()
        agent.start()
        agent.wait_ready()
        assert read_direct(agent.image_path(image_id)) == DATA


def test_full_state_folder_blocks_only_new_images(tmp_path, images):
    known, unknown = images.add(DATA), images.add(DATA[:MIB])
    with (
        file_systems.small_disk(tmp_path / "disk", MIB) as disk,
        hosts.running(tmp_path / "h1", images, state_dir=disk / "state") as agent,
    ):
        assert read_direct(agent.image_path(known)) == DATA
        with contextlib.suppress(OSError):
            (disk / "others").write_bytes(bytes(MIB))
        with pytest.raises(OSError) as caught:
            os.stat(agent.image_path(unknown))
        assert caught.value.errno == errno.ENOSPC
        assert read_direct(agent.image_path(known)) == DATA
        (disk / "others").unlink()
        assert read_direct(agent.image_path(unknown)) == DATA[:MIB]
