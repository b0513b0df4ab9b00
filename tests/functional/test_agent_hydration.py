# SPDX-License-Identifier: Apache-2.0
"""Flattening of writable disks by real agents: afterwards a disk depends on nothing else."""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import uuid

import pytest

from acstor_common import errors
from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import console
from tests.lab import local

pytestmark = hosts.needs_fuse

MIB = geometry.MIB
CHUNK = geometry.DEFAULT_CHUNK_BYTES
DATA = local.random_bytes(6 * MIB + 4097, seed=3, zero_share=0.2)
SIZE = 8 * MIB
TRUTH = (b"guest" * CHUNK + DATA[5 * CHUNK :]).ljust(SIZE, b"\0")


@pytest.fixture
def image_id(images: local.ImageFolder) -> ids.ImageId:
    return images.add(DATA)


def make(agent: agents.Agent, image_id: ids.ImageId) -> tuple[str, pathlib.Path]:
    """Create a disk of which a guest has written the first five chunks."""
    disk_id = str(uuid.uuid4())
    fields = {"disk_id": disk_id, "image_id": image_id, "size_bytes": SIZE}
    path = pathlib.Path(agents.request(agent.control_socket, "make-disk", **fields)["path"])
    with path.open("rb+") as file:
        file.write(b"guest" * CHUNK)
    return disk_id, path


def needed_bytes() -> int:
    """Return how many bytes a disk of :func:`make` still needs from its image, without zeros."""
    pieces = (DATA[at : at + CHUNK] for at in range(5 * CHUNK, len(DATA), CHUNK))
    return sum(len(piece) for piece in pieces if any(piece))


def lose(images: local.ImageFolder, image_id: ids.ImageId) -> None:
    """Delete an image from its source."""
    images.path(image_id).unlink()
    images.map_path(image_id).unlink()


def replies(agent: agents.Agent, **request: str) -> list[dict[str, object]]:
    """Return all replies of the agent to a request."""
    with console.connected(agent.control_socket) as link, link.makefile("rw") as lines:
        link.settimeout(60)
        lines.write(json.dumps(request) + "\n")
        lines.flush()
        found = []
        for line in lines:
            found.append(json.loads(line))
            if found[-1]["reply"] != "progress":
                break
        return found


def test_flattened_disk_is_read_without_source_and_cache(image_id, images, start):
    agent = start(disk_policy="pregather")
    disk_id, path = make(agent, image_id)
    *reported, done = replies(agent, op="flatten", disk_id=disk_id)
    assert done["result"]["done_bytes"] == done["result"]["fetched_bytes"] == needed_bytes()
    assert reported and {one["total_bytes"] for one in reported} == {needed_bytes()}
    assert agent.status()["disk_io"]["streams"][f"fill:flatten {disk_id}"]["bytes"] > 5 * MIB // 2
    agent.stop()
    lose(images, image_id)
    shutil.rmtree(agent.folder / "cache")
    agent.start()
    agent.wait_ready()
    assert path.read_bytes() == TRUTH


def test_flatten_fetches_a_deleted_image_from_peers(tmp_path, image_id, images):
    with hosts.cloud(tmp_path, images, ("h1", "h2")) as cloud:
        assert cloud["h1"].image_path(image_id).read_bytes() == DATA
        disk_id, path = make(cloud["h2"], image_id)
        lose(images, image_id)
        reported = json.loads(cloud["h2"].ctl("--json", "flatten", disk_id))
        assert (reported["done_bytes"], reported["failed_bytes"]) == (needed_bytes(), 0)
        cloud["h1"].stop()
        assert path.read_bytes() == TRUTH


def test_incomplete_flatten_names_the_disk_and_resumes_later(image_id, images, start):
    agent = start()
    disk_id, path = make(agent, image_id)
    kept = images.path(image_id).rename(images.folder / "away")
    with pytest.raises(errors.Unusable, match=f"disk {disk_id}: [0-9]+ chunks unavailable"):
        agents.request(agent.control_socket, "flatten", disk_id=disk_id)
    kept.rename(images.path(image_id))
    hosts.wait_until(lambda: _is_flattened(agent, disk_id), "the source found again", 60.0)
    assert path.read_bytes() == TRUTH


def _is_flattened(agent: agents.Agent, disk_id: str) -> bool:
    with contextlib.suppress(errors.Unusable):
        agents.request(agent.control_socket, "flatten", disk_id=disk_id)
        return True
    return False


@hosts.needs_take_over
def test_flatten_survives_guest_writes_and_killed_agents(image_id, start):
    agent = start()
    disk_id, path = make(agent, image_id)
    truth = bytearray(TRUTH)
    asking = subprocess.Popen(
        [agents.BIN / "acstor-agent-ctl", "--socket", agent.control_socket, "flatten", disk_id],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with path.open("rb+", buffering=0) as file:
        for at in range(5 * CHUNK + 9, len(DATA), 3 * CHUNK):
            os.pwrite(file.fileno(), b"guest", at)
            truth[at : at + 5] = b"guest"
        os.fsync(file.fileno())
    hosts.kill(agent.worker_pid())
    asking.wait(30)
    hosts.wait_until(lambda: agent.worker_pid() is not None, "another worker")
    agent.wait_ready()
    agents.request(agent.control_socket, "flatten", disk_id=disk_id)
    assert path.read_bytes() == truth


def test_flatten_of_an_unknown_disk_is_refused(start):
    agent = start()
    with pytest.raises(errors.Unusable, match="no such disk"):
        agents.request(agent.control_socket, "flatten", disk_id=str(uuid.uuid4()))
    with pytest.raises(errors.Unusable):
        agents.request(agent.control_socket, "flatten", disk_id="../x")
