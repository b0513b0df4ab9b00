# SPDX-License-Identifier: Apache-2.0
"""Agents with disk I/O scheduling: the bytes are the same, and status accounts I/O by stream."""

import concurrent.futures
import os
import subprocess

import pytest

from acstor_common import errors
from acstor_common.model import geometry
from acstor_policies import disk_schedulers
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local

pytestmark = hosts.needs_fuse
DISK = "0b6d1d1c-6a5f-4e21-8c11-3f0c2b7d9a5e"
OWN_STREAMS = ("background:agent", "prefetch:read-ahead", "fill:pre-seed")
DATA = local.random_bytes(6 * geometry.MIB + 777, seed=7, zero_share=0.2)


@pytest.mark.parametrize("policy", disk_schedulers.SCHEDULERS)
def test_reads_return_right_bytes_under_every_disk_policy(start, images, policy):
    image_id = images.add(DATA)
    agent = start(variants="linux-disk-schedulers")
    agents.request(agent.control_socket, "set-disk-policy", policy=policy)
    agents.request(agent.control_socket, "make-disk", disk_id=DISK, image_id=image_id)
    disk = agent.mount_point / "disks" / f"{DISK}.raw"
    with disk.open("r+b") as file:
        file.seek(geometry.MIB)
        file.write(b"mine" * 1000)
    expected = DATA[: geometry.MIB] + b"mine" * 1000 + DATA[geometry.MIB + 4000 :]
    with concurrent.futures.ThreadPoolExecutor() as threads:
        image = threads.submit(agent.image_path(image_id).read_bytes)
        assert disk.read_bytes() == expected
        assert image.result() == DATA
    streams = agent.status()["disk_io"]["streams"]
    assert bool(streams) == (policy != "none")
    assert (f"guest:{DISK}" in streams) == (policy != "none")


@hosts.needs_take_over
def test_disk_reads_are_accounted_to_the_guest_that_opened_the_image(start, images):
    image_id = images.add(DATA)
    agent = start(disk_policy="pregather")
    assert agent.image_path(image_id).read_bytes() == DATA
    hosts.wait_written(agent)
    with agent.image_path(image_id).open("rb", buffering=0) as held:
        hosts.kill(agent.worker_pid())
        hosts.wait_until(lambda: is_up(agent), "the next worker")
        forget_pages(agent)
        subprocess.run(
            ["dd", f"if={agent.image_path(image_id)}", "iflag=direct", "bs=128k", "of=/dev/null"],
            check=True,
            capture_output=True,
        )
        assert held.read(1000) == DATA[:1000]  # by a handle that the former worker opened
    io = agent.status()["disk_io"]
    guests = [name for name in io["streams"] if name.startswith(f"guest:{image_id}/")]
    assert guests
    assert sum(io["streams"][name]["latency"]["count"] for name in guests) > 0


@pytest.mark.parametrize("policy", ["none", "pregather"])
def test_pre_seed_and_read_ahead_have_separate_streams(start, images, policy):
    seeded, read_in_order = images.add(DATA), images.add(DATA[::-1])
    agent = start(disk_policy=policy)
    agent.ctl("pre-seed", seeded)
    subprocess.run(
        ["dd", f"if={agent.image_path(read_in_order)}", "iflag=direct", "bs=64k", "of=/dev/null"],
        check=True,
        capture_output=True,
    )
    hosts.wait_written(agent)
    streams = agent.status()["disk_io"]["streams"]
    written = {name: streams[name]["bytes"] for name in OWN_STREAMS if name in streams}
    assert set(written) == (set(OWN_STREAMS) if policy != "none" else set())
    if written:
        assert written["fill:pre-seed"] > len(DATA) / 2
        assert sum(written.values()) < 2 * len(DATA) + geometry.MIB
    assert agent.image_path(seeded).read_bytes() == DATA
    assert agent.image_path(read_in_order).read_bytes() == DATA[::-1]


@hosts.needs_take_over
def test_disk_reads_for_a_peer_are_accounted_to_the_peer(tmp_path, images):
    image_id = images.add(DATA)
    with hosts.cloud(tmp_path, images, ("h1", "h2"), disk_policy="pregather") as cloud:
        agent = cloud["h1"]
        assert agent.image_path(image_id).read_bytes() == DATA
        hosts.wait_written(agent)
        hosts.kill(agent.worker_pid())
        hosts.wait_until(lambda: is_up(agent), "the next worker")
        forget_pages(agent)
        assert cloud["h2"].image_path(image_id).read_bytes() == DATA
        streams = agent.status()["disk_io"]["streams"]
    assert {name.partition(":")[2] for name in streams} == {"h2"}  # requested, or its read-ahead
    assert sum(stream["bytes"] for stream in streams.values()) > 0
    assert sum(stream["latency"]["count"] for stream in streams.values()) > 0


def forget_pages(agent: agents.Agent) -> None:
    """Drop the cache's pages from the page cache, so that the next read needs the disk."""
    for path in (agent.folder / "cache").iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def is_up(agent: agents.Agent) -> bool:
    try:
        return bool(agent.status())
    except errors.AcstorError:
        return False


def test_policy_can_be_changed_while_guests_read(start, images):
    image_id = images.add(DATA)
    agent = start(disk_policy="none", variants="linux-disk-schedulers")
    with concurrent.futures.ThreadPoolExecutor() as threads:
        reads = [threads.submit(agent.image_path(image_id).read_bytes) for _ in range(4)]
        for policy in (*disk_schedulers.SCHEDULERS, "auto"):
            answer = agents.request(agent.control_socket, "set-disk-policy", policy=policy)
            assert answer["policy"] == policy or policy == "auto"
        assert all(read.result() == DATA for read in reads)
    with pytest.raises(errors.Unusable, match="no such policy"):
        agents.request(agent.control_socket, "set-disk-policy", policy="fastest")
