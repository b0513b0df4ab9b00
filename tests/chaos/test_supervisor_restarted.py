# SPDX-License-Identifier: Apache-2.0
"""A supervisor that is killed or restarted under readers, where a service manager keeps the mount.

The descriptors are really held by another process, over a real socket; the
mount, the agent and the readers are real.
"""

import contextlib
import signal
import time

import pytest

from acstor_agent.mount import fuse_attributes
from acstor_agent.mount import openers
from tests.fakes import descriptor_keeper
from tests.fakes import guest_readers
from tests.fakes import hosts
from tests.fakes import http_server
from tests.fakes import waiting_reader
from tests.lab import agents
from tests.lab import local
from tests.lab import runs

pytestmark = [hosts.needs_fuse, hosts.needs_take_over]

MIB = 1 << 20
READY = "READY=1"
DEADLINE_S = 60.0


class Managed:
    """An agent that a service manager with a descriptor store starts."""

    def __init__(self, folder, manager, changes=None):
        self.folder = folder
        self.manager = manager
        self.images = local.ImageFolder(folder / "source")
        changes = {"source_file": {"folder": self.images.folder}, **(changes or {})}
        self.config_file = hosts.configure(folder, changes)
        self.mount_point = folder / "mirror"
        self.process = None

    def start(self):
        argv = [agents.BIN / "acstor-agent", "--config-file", self.config_file]
        self.process = self.manager.start(argv, self.folder / "log")
        self.manager.listen(READY, DEADLINE_S)

    def end(self, number):
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)

    def log(self):
        return (self.folder / "log").read_text()

    def clean_up(self):
        self.manager.drop()
        if self.process.poll() is None:
            self.end(signal.SIGTERM)
        for point in hosts.mounts(self.folder):
            runs.tool(["umount", "--lazy", point])


@pytest.fixture
def managed(tmp_path):
    with contextlib.ExitStack() as stack:
        keeper = descriptor_keeper.DescriptorKeeper(tmp_path / "notify")
        made = Managed(tmp_path, stack.enter_context(keeper))
        made.image_id = made.images.add(local.random_bytes(8 * MIB))
        made.start()
        stack.callback(made.clean_up)
        yield made


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_readers_see_no_error_when_a_supervisor_goes_and_comes_back(managed, number):
    truth = managed.images.path(managed.image_id)
    mirror = managed.mount_point / "images" / f"{managed.image_id}.raw"
    assert set(managed.manager.kept) == {"fuse", "fuse-init"}
    with guest_readers.Readers(truth, [mirror], seed=1) as readers:
        # Not by this process: one that forks closes its files, and waits for the agent's answer.
        hosts.wait_until(lambda: openers.pids_with_open(str(mirror)), "the readers", DEADLINE_S)
        for _ in range(3):
            managed.end(number)
            assert hosts.mounts(managed.folder) == [str(managed.mount_point)]
            managed.start()
        tally = readers.stop()
    assert (tally.errors, tally.wrong) == ([], [])
    assert tally.reads > 0
    assert managed.log().count("taking back the mount") == 3


def test_mount_that_waited_for_long_is_taken_back(managed):
    """The kernel has forgotten by then what it knew of the mount, and nobody can be asked."""
    truth = managed.images.path(managed.image_id)
    mirror = managed.mount_point / "images" / f"{managed.image_id}.raw"
    with guest_readers.Readers(truth, [mirror], seed=1) as readers:
        hosts.wait_until(lambda: openers.pids_with_open(str(mirror)), "the readers", DEADLINE_S)
        managed.end(signal.SIGKILL)
        time.sleep(fuse_attributes.LAST_S + 1.0)
        managed.start()
        tally = readers.stop()
    assert (tally.errors, tally.wrong) == ([], [])
    assert managed.log().count("taking back the mount") == 1


def test_reads_that_wait_for_the_source_go_on_waiting(tmp_path):
    """The next supervisor's worker knows as well who is being killed."""
    data = local.random_bytes(2 * MIB)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(http_server.serve({}))
        changes = {
            "acstor_agent": {"sources": "http", "read_ahead_limit_bytes": 0},
            "source_http": {"url": server.url, "timeout_s": 0.3},
        }
        keeper = descriptor_keeper.DescriptorKeeper(tmp_path / "notify")
        made = Managed(tmp_path, stack.enter_context(keeper), changes)
        image_id = made.images.add(data)
        server.files |= {path.name: path.read_bytes() for path in made.images.folder.iterdir()}
        made.start()
        stack.callback(made.clean_up)
        mirror = made.mount_point / "images" / f"{image_id}.raw"
        assert mirror.stat().st_size == len(data)
        server.always = http_server.status(503)
        waits = stack.enter_context(waiting_reader.Reader("thread", mirror, MIB, 65536))
        killed = stack.enter_context(waiting_reader.Reader("aio", mirror, 0, 65536))
        time.sleep(1)
        for number in (signal.SIGKILL, signal.SIGTERM):
            made.end(number)
            assert not waits.has_ended() and not killed.has_ended()
            made.start()
        assert killed.kill() < 20
        assert not waits.has_ended()
        server.always = http_server.fine
        assert waits.said() == waiting_reader.digest(data[MIB : MIB + 65536])


def test_stop_without_readers_unmounts_and_the_manager_keeps_nothing(managed):
    assert managed.end(signal.SIGTERM) == 0
    managed.manager.listen("FDNAME=fuse-init", DEADLINE_S)
    assert managed.manager.kept == {}
    assert hosts.mounts(managed.folder) == []
    managed.start()
    assert managed.log().count("taking back the mount") == 0


def test_mount_that_was_taken_away_meanwhile_is_made_again(managed):
    managed.end(signal.SIGKILL)
    runs.tool(["umount", "--lazy", managed.mount_point])
    managed.start()
    mirror = managed.mount_point / "images" / f"{managed.image_id}.raw"
    assert mirror.stat().st_size == 8 * MIB
    assert managed.log().count("taking back the mount") == 0


def test_manager_that_kept_nothing_leaves_a_dead_mount_that_is_cleared(managed):
    managed.end(signal.SIGKILL)
    managed.manager.drop()
    managed.start()
    assert "clearing the mount that a dead agent left behind" in managed.log()
    mirror = managed.mount_point / "images" / f"{managed.image_id}.raw"
    assert mirror.stat().st_size == 8 * MIB
