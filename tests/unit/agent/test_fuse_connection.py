# SPDX-License-Identifier: Apache-2.0
"""Whether a mount is in use in any mount namespace, as the kernel reports it.

The mounts are real; no process serves them, and no request is sent to them.
"""

import contextlib
import os
import subprocess

import pytest

from acstor_agent.mount import fuse_connection
from acstor_agent.process import supervisor
from acstor_common import errors
from tests.fakes import hosts
from tests.lab import runs

pytestmark = hosts.needs_fuse


@pytest.fixture
def point(tmp_path):
    folder = tmp_path / "mirror"
    folder.mkdir()
    return folder


@pytest.fixture
def connection(point):
    made = fuse_connection.mount(str(point))
    with contextlib.ExitStack() as stack:
        stack.callback(made.close)
        yield made
        for left in hosts.mounts(point.parent):
            runs.tool(["umount", "--lazy", left])


@contextlib.contextmanager
def copy_elsewhere():
    """Keep another mount namespace with private copies of all mounts."""
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep 60"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as other:
        try:
            other.stdout.readline()
            yield
        finally:
            other.kill()


class ConnectionStore:
    """A store with one connection; in production it is another process."""

    def __init__(self, connection):
        self._connection = connection
        self.has_forgotten = False

    def take_connection(self):
        fds = (self._connection.fuse_fd, self._connection.record.fd)
        return fuse_connection.from_descriptors([os.dup(fd) for fd in fds])

    def store_connection(self, connection):
        return True

    def drop_connection(self):
        self.has_forgotten = True


def connect(point, store):
    return supervisor.Supervisor(point, None, store)._connect()


def test_mount_point_with_unusual_characters_is_found(tmp_path):
    folder = tmp_path / "ä mirror\r\\ü"
    folder.mkdir()
    made = fuse_connection.mount(str(folder))
    try:
        assert fuse_connection.mounted_type(str(folder)) == "fuse.acstor"
    finally:
        made.close()
        runs.tool(["umount", "--lazy", folder])


def test_unused_mount_is_unmounted(point, connection):
    assert fuse_connection.unmount_unused(str(point), connection.fuse_fd)
    assert hosts.mounts(point) == []


def test_unmount_unused_is_false_for_mount_used_in_another_namespace(point, connection):
    with copy_elsewhere():
        assert not fuse_connection.unmount_unused(str(point), connection.fuse_fd)
    hosts.wait_until(lambda: not fuse_connection.is_connected(connection.fuse_fd), "its end")
    assert fuse_connection.unmount_unused(str(point), connection.fuse_fd)


def test_unmount_unused_is_false_for_lazily_unmounted_mount_in_use(point, connection):
    used = os.open(point, os.O_PATH)
    runs.tool(["umount", "--lazy", point])
    assert not fuse_connection.unmount_unused(str(point), connection.fuse_fd)
    os.close(used)
    assert fuse_connection.unmount_unused(str(point), connection.fuse_fd)


def test_mount_of_another_filesystem_stays(point, connection):
    fuse_connection.unmount(str(point))
    runs.tool(["mount", "-t", "tmpfs", "tmpfs", point])
    assert fuse_connection.unmount_unused(str(point), connection.fuse_fd)
    assert hosts.mounts(point) == [str(point)]


def test_used_mount_at_another_path_is_refused_and_kept(point, connection):
    store = ConnectionStore(connection)
    with pytest.raises(errors.Unusable, match="is in use, but not visible here"):
        connect(point.with_name("elsewhere"), store)
    assert not store.has_forgotten
    assert fuse_connection.is_connected(connection.fuse_fd)


def test_used_mount_with_unreadable_record_is_kept(point, connection):
    os.pwrite(connection.record.fd, b"[]\n", 0)
    store = ConnectionStore(connection)
    with pytest.raises(errors.Unusable, match="its record is invalid here"):
        connect(point.with_name("elsewhere"), store)
    assert not store.has_forgotten
    assert hosts.mounts(point) == [str(point)]


@pytest.mark.expect_log("not in use; releasing it")
def test_unused_mount_with_unreadable_record_is_replaced(point, connection):
    os.pwrite(connection.record.fd, b"[]\n", 0)
    store = ConnectionStore(connection)
    made = connect(point, store)
    assert store.has_forgotten
    assert fuse_connection.is_connected(made.fuse_fd)
    made.close()
