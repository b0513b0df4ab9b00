# SPDX-License-Identifier: Apache-2.0
"""The record of a mount, as its next owner reads it."""

import os

import pytest

from acstor_agent.core.mount import inodes
from acstor_agent.mount import fuse_connection
from acstor_agent.mount import mount_record
from acstor_common import errors


@pytest.fixture
def record():
    made = mount_record.MountRecord.begin_record(b"\x00offer\xff")
    yield made
    made.close()


def again(record):
    """Read it as its next owner does."""
    return mount_record.MountRecord(os.dup(record.fd))


def test_next_owner_reads_what_was_recorded(record):
    assert again(record).mounted == mount_record.Mounted(inodes.LAYOUT, b"\x00offer\xff")
    assert record.init_answer() is None
    record.record_init_answer(b"yes\n")
    assert again(record).init_answer() == b"yes\n"


def test_first_init_answer_is_kept(record):
    record.record_init_answer(b"first")
    again(record).record_init_answer(b"second")
    assert record.init_answer() == b"first"


def test_truncated_init_answer_is_ignored(record):
    record.record_init_answer(b"first")
    os.ftruncate(record.fd, os.fstat(record.fd).st_size - 1)
    assert again(record).init_answer() is None


@pytest.mark.parametrize("data", [b"", b"\n", b"\xff\n", b'{"entry":"other"}\n', b"[]\n"])
def test_invalid_record_is_refused(data):
    fds = [os.open("/dev/null", os.O_RDWR), os.memfd_create(mount_record.NAME)]
    os.write(fds[1], data)
    with pytest.raises(errors.Unusable, match="its record is invalid here") as caught:
        fuse_connection.from_descriptors(fds)
    os.close(caught.value.fuse_fd)
    assert_closed(fds)


def assert_closed(fds):
    for fd in fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


@pytest.mark.parametrize("step", [1, -1])
def test_connection_is_recognized_for_descriptors_in_any_order(record, step):
    fds = [os.open("/dev/null", os.O_RDWR), os.dup(record.fd)]
    found = fuse_connection.from_descriptors(fds[::step])
    assert (found.fuse_fd, found.record.fd) == tuple(fds)
    found.close()


def test_mount_without_record_is_refused_and_record_without_mount_dropped(record):
    fds = [os.open("/dev/null", os.O_RDWR)]
    with pytest.raises(errors.Unusable, match="it was kept without its record") as caught:
        fuse_connection.from_descriptors(fds)
    os.close(caught.value.fuse_fd)
    assert_closed(fds)
    fds = [os.dup(record.fd)]
    assert fuse_connection.from_descriptors(fds) is None
    assert_closed(fds)
    assert fuse_connection.from_descriptors([]) is None


def test_init_answer_after_a_truncated_one_is_read(record):
    record.record_init_answer(b"first, and long enough to stick out")
    os.ftruncate(record.fd, os.fstat(record.fd).st_size - 1)
    record.record_init_answer(b"second")
    assert again(record).init_answer() == b"second"
