# SPDX-License-Identifier: Apache-2.0
"""Workers, supervisors and whole agents killed under their guests."""

import contextlib
import errno
import os
import random
import signal
import subprocess
import time

import pytest

from acstor_agent.mount import open_files
from acstor_common.model import geometry
from tests.chaos import kill_loop
from tests.fakes import guest_readers
from tests.fakes import hosts
from tests.fakes import http_server
from tests.lab import agents
from tests.lab import local

pytestmark = [hosts.needs_fuse, hosts.needs_take_over]

MIB = geometry.MIB
CHUNK = geometry.DEFAULT_CHUNK_BYTES
DATA = local.random_bytes(24 * MIB + 12345, zero_share=0.1)
KILLS = 4
LIVES_S = (0.02, 0.3)
START_S = 20.0


def kill_worker(agent: agents.Agent) -> None:
    """Kill the worker and wait for the next one."""
    killed = agent.worker_pid()
    hosts.kill(killed)
    hosts.wait_until(lambda: agent.worker_pid() not in (killed, None), "the next worker")
    agent.wait_ready()


def test_repeatedly_killed_workers_fail_no_read(tmp_path, images):
    image_id = images.add(DATA)
    rng = random.Random(1)
    options = {"cache_limit_bytes": 8 * MIB}
    with hosts.running(tmp_path / "h1", images, **options) as agent:
        path = agent.image_path(image_id)
        with guest_readers.Readers(images.path(image_id), [path], seed=1) as readers:
            hosts.wait_until(lambda: open_files.pids_with_open(str(path)), "the readers", START_S)
            ends_s = time.monotonic() + hosts.LIFE_S
            assert kill_loop.kill_again_and_again(agent, rng, KILLS, ends_s, LIVES_S) == KILLS
            agent.wait_ready()

            def reads():
                return agent.status()["images"][image_id]["latency"]["count"]

            before = reads()
            hosts.wait_until(lambda: reads() > before + 100, "reads of the last worker", START_S)
            tally = readers.stop()
        assert (tally.errors, tally.wrong) == ([], [])
        assert tally.reads > 100
        assert agent.log().count("ended (killed by SIGKILL); starting another") == KILLS
        subprocess.run(["cmp", path, images.path(image_id)], check=True)


def test_stopped_worker_hands_its_reads_to_the_next_one(tmp_path, images):
    """SIGTERM, without EIO for guests that wait for a chunk at that moment."""
    image_id = images.add(DATA)
    files = {path.name: path.read_bytes() for path in images.folder.iterdir()}
    with http_server.serve(files) as server:
        options = {"cache_limit_bytes": 4 * MIB}
        options |= hosts.http_options(server.url, 5)
        with hosts.running(tmp_path / "h1", images, **options) as agent:
            path = agent.image_path(image_id)
            path.stat()
            server.always = http_server.slow(0.02)
            with guest_readers.Readers(images.path(image_id), [path], seed=2) as readers:
                for _ in range(3):
                    time.sleep(0.4)
                    stopped = agent.worker_pid()
                    os.kill(stopped, signal.SIGTERM)
                    hosts.wait_until(lambda: agent.worker_pid() not in (stopped, None), "a worker")  # noqa: B023
                    agent.wait_ready()  # SIGTERM kills a worker that has not started yet
                tally = readers.stop()
        assert (tally.errors, tally.wrong) == ([], [])
        assert tally.reads > 50
        assert agent.log().count("ended (exit status 0); starting another") == 3


def test_new_worker_downloads_no_cached_chunk_again(tmp_path, images):
    image_id = images.add(DATA)
    files = {path.name: path.read_bytes() for path in images.folder.iterdir()}
    with (
        http_server.serve(files) as server,
        hosts.running(tmp_path / "h1", images, **hosts.http_options(server.url)) as agent,
    ):
        assert agent.image_path(image_id).read_bytes() == DATA
        hosts.wait_written(agent)
        moved, asked = server.body_bytes, len(server.asked)
        for _ in range(2):
            kill_worker(agent)
            subprocess.run(
                ["dd", f"if={agent.image_path(image_id)}", "iflag=direct", "of=/dev/null", "bs=1M"],
                check=True,
                capture_output=True,
            )
            status = agent.status()
            assert status["exchange"]["source_bytes"] == 0
            assert status["cache"]["corrupt_chunks"] == 0
        assert agent.image_path(image_id).read_bytes() == DATA
        assert (server.body_bytes, len(server.asked)) == (moved, asked)


def test_killed_agent_restarts_over_its_dead_mount(tmp_path, images):
    image_id = images.add(DATA)
    with hosts.running(tmp_path / "h1", images) as agent:
        path = agent.image_path(image_id)
        assert path.read_bytes() == DATA
        os.utime(path, ns=(1, 10**18))
        hosts.wait_written(agent)
        hosts.kill_agent(agent)
        wait_for_the_end(agent)
        agent.start()
        agent.wait_ready()
        assert "clearing the mount that a dead agent left behind" in agent.log()
        assert path.read_bytes() == DATA
        assert path.stat().st_mtime_ns == 10**18
        assert agent.status()["exchange"]["source_bytes"] == 0
    assert not hosts.mounts(tmp_path)


def wait_for_the_end(agent: agents.Agent) -> None:
    """Wait until the kernel sees the dead connection (it may still cache attributes)."""
    hosts.wait_until(
        lambda: errno_of(os.statvfs, agent.mount_point) == errno.ENOTCONN, "the end of the mount"
    )


def errno_of(action, *args) -> int:
    try:
        action(*args)
    except OSError as e:
        return e.errno or 0
    return 0


def test_orphaned_worker_serves_on_and_blocks_a_second_agent(tmp_path, images):
    image_id = images.add(DATA)
    with hosts.running(tmp_path / "h1", images) as agent:
        worker_pid = agent.worker_pid()
        path = agent.image_path(image_id)
        hosts.kill(agent.pid)
        try:
            assert path.read_bytes() == DATA
            status, words = hosts.refuse(agent.config_file)
            assert status == 1
            assert "another agent uses it" in words
            assert path.read_bytes() == DATA
        finally:
            hosts.kill(worker_pid)
        wait_for_the_end(agent)
        agent.start()
        agent.wait_ready()
        assert path.read_bytes() == DATA


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_agent_leaves_no_mount_process_or_warning(tmp_path, images, number):
    image_id = images.add(DATA)
    with hosts.running(tmp_path / "h1", images) as agent:
        agent.image_path(image_id).read_bytes()
        supervisor_pid, worker_pid = agent.pid, agent.worker_pid()
        os.kill(supervisor_pid, number)
        began = time.monotonic()
        agent.stop()  # waits for it
        assert time.monotonic() - began < 5
        assert not hosts.mounts(tmp_path)
        for pid in (supervisor_pid, worker_pid):
            assert errno_of(os.kill, pid, 0) == errno.ESRCH
        assert os.listdir(agent.mount_point) == []
        assert "WARNING" not in agent.log() and "ERROR" not in agent.log()


def test_forced_stop_of_an_agent_in_use_is_logged(tmp_path, images):
    image_id = images.add(DATA)
    with hosts.running(tmp_path / "h1", images) as agent:
        guest = os.open(agent.image_path(image_id), os.O_RDONLY)
        try:
            agent.stop()
            ended = (errno.ENOTCONN, errno.ECONNABORTED)
            assert errno_of(os.pread, guest, 4096, 20 * MIB) in ended
        finally:
            with contextlib.suppress(OSError):  # close reports the dead connection
                os.close(guest)
        assert "still in use; unmounting it, its users will get I/O errors" in agent.log()
        assert not hosts.mounts(tmp_path)


def test_flipped_bits_in_the_cache_are_repaired_after_a_restart(tmp_path, images):
    image_id = images.add(DATA)
    with hosts.running(tmp_path / "h1", images) as agent:
        assert agent.image_path(image_id).read_bytes() == DATA
        hosts.wait_written(agent)
        agent.stop()
        rng = random.Random(3)
        slab = agent.folder / "cache" / "slab-00000.acslab"
        with slab.open("r+b") as file:
            for _ in range(40):
                at = rng.randrange(1 * MIB, 20 * MIB)
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 1 << rng.randrange(8)]))
        agent.start()
        agent.wait_ready()
        assert agent.image_path(image_id).read_bytes() == DATA
        cache = agent.status()["cache"]
        assert 10 < cache["corrupt_chunks"] <= 40
        assert agent.status()["exchange"]["source_bytes"] == cache["corrupt_chunks"] * CHUNK
