# SPDX-License-Identifier: Apache-2.0
"""A real guest whose only disk is a writable one of the agent.  Needs the lab's image."""

import contextlib
import os
import pathlib
import uuid

import pytest

from acstor_common import errors
from acstor_common.model import ids
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import guest
from tests.lab import local
from tests.lab import runs

LIFE_S = 280.0
pytestmark = [
    hosts.needs_fuse,
    hosts.needs_take_over,
]


def test_guest_boots_from_a_writable_disk_and_survives_a_killed_worker(
    tmp_path: pathlib.Path, images: local.ImageFolder, guest_image_id: ids.ImageId
) -> None:
    with hosts.running(tmp_path / "h1", images, life_s=LIFE_S) as agent:
        disk_id = str(uuid.uuid4())
        made = agents.request(
            agent.control_socket, "make-disk", disk_id=disk_id, image_id=guest_image_id
        )
        shortcut = tmp_path / "guest.raw"  # the guest's files are created beside its disk
        shortcut.symlink_to(made["path"])
        with contextlib.ExitStack() as stack:
            with runs.prioritized():
                running = guest.Guest(agent.host, shortcut, disk_format="raw")
                booted = stack.enter_context(running)
            assert booted.wait_booted(LIFE_S).login_s is not None
            text = "seq 100000 | md5sum"
            first = booted.shell(f"seq 100000 > /root/note; sync; {text}")
            killed = agent.worker_pid()
            hosts.kill(killed)
            hosts.wait_until(lambda: agent.worker_pid() not in (killed, None), "the next worker")
            again = booted.shell(
                "dd if=/dev/urandom of=/root/more bs=64k count=100 2>/dev/null; sync;"
                " echo 3 > /proc/sys/vm/drop_caches; md5sum < /root/note"
            )
            # Kernel messages may precede it.
            assert again.splitlines()[-1] == first.splitlines()[-1]
            booted.check_progress()
            with pytest.raises(errors.Unusable, match="is open in processes"):
                agents.request(agent.control_socket, "drop-disk", disk_id=disk_id)
        agent.wait_ready()
        assert agent.status()["disks"][disk_id]["written_bytes"] > 100 * 64 * 1024
        assert os.path.getsize(made["path"]) == images.path(guest_image_id).stat().st_size
