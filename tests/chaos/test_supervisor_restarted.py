# SPDX-License-Identifier: Apache-2.0
"""A supervisor killed or restarted under readers, with a service manager that keeps the mount.

Another process really holds the descriptors, over a real socket; the mount, the agent and the
readers are real.

"""

import base64
import contextlib
import json
import os
import signal
import struct
import time

import pytest

from acstor_agent.mount import fuse_attributes
from acstor_agent.mount import mount_record
from acstor_agent.process import service_manager
from tests.fakes import descriptor_keeper
from tests.fakes import hosts
from tests.fakes import http_server
from tests.fakes import managed_agent
from tests.fakes import waiting_reader
from tests.lab import local
from tests.lab import runs

pytestmark = [hosts.needs_fuse, hosts.needs_take_over]

MIB = 1 << 20
DEADLINE_S = managed_agent.DEADLINE_S
ASYNC_READ, POSIX_LOCKS = 1 << 0, 1 << 1
"""Flags of FUSE_INIT: one that libfuse sets if it is offered, one that it does not set here."""


@pytest.fixture
def managed(tmp_path):
    with managed_agent.started(tmp_path) as made:
        yield made


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_readers_see_no_error_when_a_supervisor_restarts(managed, number):
    assert [len(fds) for fds in managed.manager.kept.values()] == [2]
    with managed.reading() as readers:
        for _ in range(3):
            managed.end(number)
            assert hosts.mounts(managed.folder) == [str(managed.mount_point)]
            managed.start()
        tally = readers.stop()
    assert (tally.errors, tally.wrong) == ([], [])
    assert tally.reads > 0
    assert managed.log().count("taking over the mount") == 3


def test_mount_is_taken_over_after_a_long_outage(managed):
    """By then the kernel's caches of the mount have expired, and no process serves it."""
    with managed.reading() as readers:
        managed.end(signal.SIGKILL)
        time.sleep(fuse_attributes.LAST_S + 1.0)
        managed.start()
        tally = readers.stop()
    assert (tally.errors, tally.wrong) == ([], [])
    assert managed.log().count("taking over the mount") == 1


@pytest.mark.parametrize("kernel", [managed_agent.NEWER_KERNEL, managed_agent.OLDER_KERNEL])
def test_reads_keep_waiting_for_the_source_across_a_restart(tmp_path, kernel):
    """The next supervisor's worker also detects killed processes."""
    data = local.random_bytes(2 * MIB)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(http_server.serve({}))
        changes = {
            "acstor_agent": {"sources": "http", "variants": "no-read-ahead"},
            "source_http": {"url": server.url, "timeout_s": 0.3},
        }
        keeper = descriptor_keeper.DescriptorKeeper(tmp_path / "notify")
        made = managed_agent.ManagedAgent(tmp_path, stack.enter_context(keeper), changes, kernel)
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


def record_of(managed):
    """Return the descriptor of the kept record."""
    fds = managed.manager.kept[service_manager.MOUNT]
    return next(fd for fd in fds if mount_record.is_record(fd))


def keep_only(managed, is_record, name=service_manager.MOUNT):
    """Let the manager keep only one of the two descriptors."""
    for fd in managed.manager.kept.pop(service_manager.MOUNT):
        if mount_record.is_record(fd) == is_record:
            managed.manager.kept[name] = [fd]
        else:
            os.close(fd)


class Record:
    """The kept record of the mount, as another version would have written it."""

    def __init__(self, fd):
        self._fd = fd
        self._was = os.pread(fd, 65536, 0)
        self.facts = [json.loads(line) for line in self._was.splitlines()]

    def restore(self):
        self._write(self._was)

    def change(self, number, **fields):
        facts = [{**fact} for fact in self.facts]
        facts[number].update(fields)
        self._write(b"".join(json.dumps(fact).encode() + b"\n" for fact in facts))

    def change_flags(self, flip):
        """Record other flags of FUSE_INIT than the kernel got."""
        reply = bytearray(base64.b64decode(self.facts[1]["reply"]))
        (flags,) = struct.unpack_from("<I", reply, 28)
        struct.pack_into("<I", reply, 28, flags ^ flip)
        self.change(1, reply=base64.b64encode(reply).decode())

    def _write(self, data):
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, data, 0)


def test_incompatible_version_names_the_reason_and_guests_wait(managed):
    with managed.reading() as readers:
        managed.end(signal.SIGKILL)
        record = Record(record_of(managed))
        record.change(0, inode_layout=99)
        managed.refuse()
        assert "its open files have inodes of layout 99, not 1" in managed.log()
        record.change_flags(POSIX_LOCKS)
        managed.refuse()
        assert "this libfuse would answer FUSE_INIT differently: without the flags 0x2" in (
            managed.log()
        )
        assert "Guests wait. Return to that version" in managed.log()
        assert hosts.mounts(managed.folder) == [str(managed.mount_point)]
        record.restore()
        managed.start()
        tally = readers.stop()
    assert (tally.errors, tally.wrong) == ([], [])
    assert tally.reads > 0


def test_version_that_offers_more_fuse_flags_takes_the_mount_over(managed):
    managed.end(signal.SIGKILL)
    Record(record_of(managed)).change_flags(ASYNC_READ)
    managed.start()
    assert managed.mirror.read_bytes() == managed.truth.read_bytes()
    assert managed.log().count("taking over the mount") == 1


def test_unused_mount_is_replaced_by_an_incompatible_version(managed):
    managed.end(signal.SIGKILL)
    Record(record_of(managed)).change(0, inode_layout=99)
    managed.refuse()
    managed.manager.listen("FDSTOREREMOVE", DEADLINE_S)
    assert managed.manager.kept == {}
    managed.start()
    assert managed.mirror.read_bytes() == managed.truth.read_bytes()


@pytest.mark.parametrize("name", [service_manager.MOUNT, "fuse"])
def test_unused_mount_without_a_record_is_replaced(managed, name):
    managed.end(signal.SIGKILL)
    keep_only(managed, is_record=False, name=name)
    managed.start()
    assert "it was kept without its record" in managed.log()
    assert managed.manager.reported.count(f"FDSTOREREMOVE=1\nFDNAME={name}") == 1
    assert managed.mirror.read_bytes() == managed.truth.read_bytes()


def test_guests_of_a_mount_without_a_record_wait_and_it_is_logged(managed):
    with managed.reading() as readers:
        managed.end(signal.SIGKILL)
        record = os.dup(record_of(managed))
        keep_only(managed, is_record=False)
        managed.refuse()
        assert "it was kept without its record" in managed.log()
        managed.manager.kept[service_manager.MOUNT].append(record)
        managed.start()
        tally = readers.stop()
    assert (tally.errors, tally.wrong) == ([], [])


def test_agent_refuses_to_start_on_a_mount_held_by_another_process(managed):
    with managed.reading() as readers:
        managed.end(signal.SIGKILL)
        kept = dict(managed.manager.kept)
        managed.manager.kept.clear()
        managed.refuse()
        assert "does not answer, and a process other than this agent holds it" in managed.log()
        managed.manager.kept.update(kept)
        managed.start()
        tally = readers.stop()
    assert (tally.errors, tally.wrong) == ([], [])


def test_record_of_a_dead_mount_is_dropped(managed):
    managed.end(signal.SIGKILL)
    keep_only(managed, is_record=True)
    managed.start()
    assert managed.mirror.read_bytes() == managed.truth.read_bytes()


def test_stop_without_readers_unmounts_and_clears_the_manager(managed):
    assert managed.end(signal.SIGTERM) == 0
    managed.manager.listen("FDSTOREREMOVE", DEADLINE_S)
    assert managed.manager.kept == {}
    assert hosts.mounts(managed.folder) == []
    managed.start()
    assert managed.log().count("taking over the mount") == 0


def test_unmounted_mount_is_created_again_at_the_next_start(managed):
    managed.end(signal.SIGKILL)
    runs.tool(["umount", "--lazy", managed.mount_point])
    managed.start()
    assert managed.mirror.stat().st_size == managed_agent.IMAGE_BYTES
    assert managed.log().count("taking over the mount") == 0


def test_dead_mount_is_cleared_when_the_manager_kept_nothing(managed):
    managed.end(signal.SIGKILL)
    managed.manager.drop()
    managed.start()
    assert "clearing the mount that a dead agent left behind" in managed.log()
    assert managed.mirror.stat().st_size == managed_agent.IMAGE_BYTES
