# SPDX-License-Identifier: Apache-2.0
"""Writable disks whose workers, agents and host's disk fail under a writing guest."""

import contextlib
import errno
import os
import pathlib
import random
import subprocess
import time
import uuid

import pytest

from acstor_common.model import geometry
from tests.fakes import disk_writers
from tests.fakes import file_systems
from tests.fakes import hosts
from tests.fakes import http_server
from tests.lab import agents
from tests.lab import local

pytestmark = [hosts.needs_fuse, hosts.needs_take_over]

MIB = geometry.MIB
CHUNK = geometry.DEFAULT_CHUNK_BYTES
DATA = local.random_bytes(20 * MIB + 4096, zero_share=0.1)
SIZE = 24 * MIB
KILLS = 4


@pytest.fixture
def plain(tmp_path):
    path = tmp_path / "plain"
    path.write_bytes(DATA.ljust(SIZE, b"\0"))
    return path


def make(agent: agents.Agent, image_id: str, size_bytes: int = SIZE) -> pathlib.Path:
    fields = {"disk_id": str(uuid.uuid4()), "image_id": image_id, "size_bytes": size_bytes}
    return pathlib.Path(agents.request(agent.control_socket, "make-disk", **fields)["path"])


def check_equal(path: pathlib.Path, plain: pathlib.Path) -> None:
    subprocess.run(["cmp", path, plain], check=True, timeout=20)


def test_repeatedly_killed_workers_lose_no_write(tmp_path, images, plain):
    image_id = images.add(DATA)
    files = {path.name: path.read_bytes() for path in images.folder.iterdir()}
    rng = random.Random(1)
    options = {"cache_limit_bytes": 8 * MIB}
    with http_server.serve(files) as server:
        options |= hosts.http_options(server.url, 5)
        with hosts.running(tmp_path / "h1", images, **options) as agent:
            path = make(agent, image_id)
            server.always = http_server.slow(0.005)
            with disk_writers.Writer(path, plain, seed=1) as writer:
                for kill in range(KILLS):
                    hosts.wait_until(lambda: writer.writes() > 10 * kill, "ten writes more")  # noqa: B023
                    time.sleep(rng.uniform(0.05, 0.4))
                    killed = agent.worker_pid()
                    hosts.kill(killed)
                    hosts.wait_until(lambda: agent.worker_pid() not in (killed, None), "a worker")  # noqa: B023
                agent.wait_ready()
                hosts.wait_until(lambda: writer.writes() > 10 * KILLS, "ten writes more")
                tally = writer.stop()
            assert (tally.error, tally.wrong) == ("", [])
            assert tally.writes > 30 and tally.fsyncs > 3
            assert tally.longest_s < 5
            assert agent.log().count("ended (killed by SIGKILL); starting another") == KILLS
            check_equal(path, plain)


def test_killed_agent_loses_no_completed_write(tmp_path, images, plain):
    image_id = images.add(DATA)
    with hosts.running(tmp_path / "h1", images) as agent:
        path = make(agent, image_id)
        for seed in (2, 3):
            with disk_writers.Writer(path, plain, seed) as writer:
                time.sleep(0.7)
                hosts.kill_agent(agent)
                writer.wait_failed()
                tally = writer.stop()
            assert tally.wrong == [] and tally.writes > 10
            assert tally.error
            agent.stop()
            agent.start()
            agent.wait_ready()
            offset, length = tally.failed  # an unknown part of it was done
            with plain.open("rb+") as truth, path.open("rb", buffering=0) as disk:
                truth.seek(offset)
                truth.write(os.pread(disk.fileno(), length, offset))
            check_equal(path, plain)


def test_stopping_agent_syncs_its_disks(tmp_path, images):
    image_id = images.add(DATA)
    with hosts.running(tmp_path / "h1", images) as agent:
        path = make(agent, image_id)
        with path.open("rb+", buffering=0) as file:
            file.write(b"x" * CHUNK)
        state = agent.folder / "state" / "disks" / f"{path.stem}.acdisk"
        assert state.read_bytes()[4096] in (1, 2)
        agent.stop()
        assert state.read_bytes()[4096:4098] == b"\2\0"


@contextlib.contextmanager
def running_on_small_disk(folder, images, disk_bytes):
    """Run an agent whose state is on a disk of its own; yield it, and the disk."""
    with (
        file_systems.small_disk(folder / "disk", disk_bytes) as disk,
        hosts.running(folder / "h1", images, state_dir=disk / "state") as agent,
    ):
        yield agent, disk


def test_full_disk_returns_enospc_and_loses_no_data(tmp_path, images):
    image_id = images.add(DATA)
    with running_on_small_disk(tmp_path, images, 4 * MIB) as (agent, folder):
        path = make(agent, image_id)
        truth, written = bytearray(DATA.ljust(SIZE, b"\0")), 0
        with path.open("rb+", buffering=0) as file:
            with pytest.raises(OSError) as caught:
                for at in range(0, SIZE, CHUNK):
                    os.pwrite(file.fileno(), b"x" * CHUNK, at)
                    os.fsync(file.fileno())
                    truth[at : at + CHUNK] = b"x" * CHUNK
                    written += CHUNK
            assert caught.value.errno == errno.ENOSPC
            assert written > 3 * MIB
            os.pwrite(file.fileno(), b"in place", 5)
            truth[5:13] = b"in place"
        assert path.read_bytes() == truth
        subprocess.run(["mount", "-o", f"remount,size={64 * MIB}", folder], check=True)
        with path.open("rb+", buffering=0) as file:
            os.pwrite(file.fileno(), b"y" * CHUNK, written)
        truth[written : written + CHUNK] = b"y" * CHUNK
        assert path.read_bytes() == truth
        assert agent.status()["worker_pid"] == agent.worker_pid()


def test_full_disk_leaves_no_partial_disk(tmp_path, images):
    image_id = images.add(DATA)
    with running_on_small_disk(tmp_path, images, MIB) as (agent, folder):
        agents.request(agent.control_socket, "attach-image", image_id=image_id)
        with contextlib.suppress(OSError):
            (folder / "others").write_bytes(bytes(MIB))
        with pytest.raises(agents.errors.Unusable, match="No space left"):
            make(agent, image_id)
        assert list((folder / "state" / "disks").iterdir()) == []
        (folder / "others").unlink()
        assert make(agent, image_id).read_bytes() == DATA.ljust(SIZE, b"\0")
