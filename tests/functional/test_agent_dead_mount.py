# SPDX-License-Identifier: Apache-2.0
"""The running agent reports guests whose mount is dead, and no others."""

import contextlib
import errno
import os
import pathlib
from collections.abc import Iterator

from tests.fakes import compute_host
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local

pytestmark = hosts.needs_fuse

DATA = local.random_bytes(1 << 20)
LOST = "0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12"
WELL = "0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a13"


@contextlib.contextmanager
def guest(folder: pathlib.Path, instance_id: str, image: pathlib.Path) -> Iterator[None]:
    """Run a stand-in for the QEMU of an instance, and create its disk first."""
    disk = folder / instance_id / "disk"
    disk.parent.mkdir()
    disk.touch()
    with compute_host.guest(disk, image):
        yield


def ended(agent: agents.Agent) -> bool:
    try:
        os.statvfs(agent.mount_point)
    except OSError as e:
        return e.errno == errno.ENOTCONN
    return False


def test_guest_on_a_dead_mount_is_reported(tmp_path, images):
    image_id = images.add(DATA)
    with hosts.running(tmp_path / "h1", images) as agent, contextlib.ExitStack() as stack:
        path = agent.image_path(image_id)
        stack.enter_context(guest(tmp_path, LOST, path))
        hosts.kill_agent(agent)
        hosts.wait_until(lambda: ended(agent), "the end of the mount")
        agent.start()
        agent.wait_ready()
        hosts.wait_until(lambda: agent.status()["guests"]["on_dead_mounts"], "the guest")
        stack.enter_context(guest(tmp_path, WELL, path))
        killed = agent.worker_pid()
        hosts.kill(killed)  # the next one checks at once
        hosts.wait_until(lambda: agent.worker_pid() not in (killed, None), "the next worker")
        agent.wait_ready()
        hosts.wait_until(lambda: agent.status()["guests"]["on_dead_mounts"], "the next look")
        assert agent.status()["guests"]["on_dead_mounts"] == [LOST]
        assert f"get I/O errors; restart them: {LOST}" in agent.log()
