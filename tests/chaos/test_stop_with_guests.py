# SPDX-License-Identifier: Apache-2.0
"""An agent told to stop while guests use its mount, without a service manager that keeps it.

Agent, mount and readers are real; another process holds the image open.

"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from acstor_agent.mount import open_files
from tests.fakes import guest_readers
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local

pytestmark = hosts.needs_fuse

MIB = 1 << 20
DEADLINE_S = 30.0
HOLD = "import sys; file = open(sys.argv[1], 'rb'); print(1, flush=True); sys.stdin.read()"


class Stopped:
    """An agent without a service manager, and a process that has an image open."""

    def __init__(self, folder, with_guests):
        images = local.ImageFolder(folder / "source")
        changes = {
            "source_file": {"folder": images.folder},
            "acstor_agent": {"stop_with_guests": with_guests},
        }
        self.mount_point = folder / "mirror"
        self._log = folder / "log"
        self.image_id = images.add(local.random_bytes(8 * MIB))
        self.truth = images.path(self.image_id)
        config_file = hosts.configure(folder, changes)
        with self._log.open("wb") as out:
            self.process = subprocess.Popen(
                [agents.BIN / "acstor-agent", "--config-file", config_file],
                stdout=out, stderr=out, env={**os.environ, "NOTIFY_SOCKET": ""},
            )  # fmt: skip
        hosts.wait_until(lambda: bool(hosts.mounts(folder)), "the mount", DEADLINE_S)

    @property
    def mirror(self):
        return self.mount_point / "images" / f"{self.image_id}.raw"

    @contextlib.contextmanager
    def held(self):
        """Hold the image open in a process with QEMU's name; yield it."""
        argv = [sys.executable, "-c", HOLD, self.mirror, "guest=instance-7,debug-threads=on"]
        holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert holder.stdout.readline() == b"1\n"
            yield holder
        finally:
            holder.kill()
            holder.communicate()

    def log(self):
        return self._log.read_text()

    def refusals(self):
        return re.findall(r"is in use; the agent keeps running: (.*)", self.log())

    def clean_up(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(DEADLINE_S)
        assert not hosts.mounts(self.mount_point)


@pytest.fixture
def stopped(tmp_path, request):
    made = Stopped(tmp_path, getattr(request, "param", "refuse"))
    yield made
    made.clean_up()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_is_refused_while_guests_run(stopped, number):
    with (
        guest_readers.Readers(stopped.truth, [stopped.mirror], seed=3) as readers,
        stopped.held() as holder,
    ):
        hosts.wait_until(lambda: open_files.pids_with_open(str(stopped.mirror)), "them", DEADLINE_S)
        for asked in range(1, 4):  # repeated requests do not force it
            stopped.process.send_signal(number)
            hosts.wait_until(lambda: len(stopped.refusals()) >= asked, "it", DEADLINE_S)  # noqa: B023
        name = re.escape(
            f"process {holder.pid} ({os.path.basename(sys.executable)} guest=instance-7)"
        )
        assert re.search(rf"{name} has {stopped.image_id}.raw open", stopped.refusals()[0])
        assert stopped.process.poll() is None
        tally = readers.stop()
    assert (tally.errors, tally.wrong) == ([], [])
    assert tally.reads > 0
    assert stopped.mirror.read_bytes() == stopped.truth.read_bytes()
    stopped.process.send_signal(number)
    assert stopped.process.wait(DEADLINE_S) == 0
    assert not hosts.mounts(stopped.mount_point)
    assert "Traceback" not in stopped.log()


def test_refused_stop_is_not_carried_out_later(stopped):
    """No caller waits for it any more."""
    with stopped.held():
        stopped.process.send_signal(signal.SIGTERM)
        hosts.wait_until(stopped.refusals, "the refusal", DEADLINE_S)
    time.sleep(3.0)
    assert stopped.process.poll() is None
    assert stopped.mirror.read_bytes() == stopped.truth.read_bytes()


def test_process_with_its_working_folder_below_the_mount_is_named(stopped):
    shell = subprocess.Popen(["sleep", "60"], cwd=stopped.mount_point / "images")
    try:
        stopped.process.send_signal(signal.SIGTERM)
        hosts.wait_until(stopped.refusals, "the refusal", DEADLINE_S)
        assert f"process {shell.pid} (sleep) has images open" in stopped.refusals()[0]
    finally:
        shell.kill()
        shell.wait()


def test_worker_that_dies_after_a_refusal_is_replaced(stopped):
    with stopped.held():
        stopped.process.send_signal(signal.SIGTERM)
        hosts.wait_until(stopped.refusals, "the refusal", DEADLINE_S)
        children = f"/proc/{stopped.process.pid}/task/{stopped.process.pid}/children"
        with open(children) as file:
            worker = int(file.read().split()[0])
        os.kill(worker, signal.SIGKILL)
        assert stopped.mirror.read_bytes() == stopped.truth.read_bytes()


@pytest.mark.parametrize("stopped", ["unmount"], indirect=True)
def test_forced_stop_unmounts_under_a_guest(stopped):
    with stopped.held():
        stopped.process.send_signal(signal.SIGTERM)
        assert stopped.process.wait(DEADLINE_S) == 0
        assert not hosts.mounts(stopped.mount_point)
    assert "its users will get I/O errors" in stopped.log()
