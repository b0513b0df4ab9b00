# SPDX-License-Identifier: Apache-2.0
"""What is recorded of a mount, and read by somebody else."""

import os

import pytest

from acstor_agent.core import inodes
from acstor_agent.mount import fuse_connection
from acstor_agent.mount import mount_record
from acstor_common import errors


@pytest.fixture
def record():
    made = mount_record.MountRecord.make(b"\x00offer\xff")
    yield made
    made.close()


def again(record):
    """Read it as its next owner does."""
    return mount_record.MountRecord(os.dup(record.fd))


def test_next_owner_reads_what_was_recorded(record):
    assert again(record).mounted == mount_record.Mounted(inodes.LAYOUT, b"\x00offer\xff")
    assert record.answer() is None
    record.answered(b"yes\n")
    assert again(record).answer() == b"yes\n"


def test_first_answer_counts(record):
    record.answered(b"first")
    again(record).answered(b"second")
    assert record.answer() == b"first"


def test_line_that_was_cut_off_was_told_to_nobody(record):
    record.answered(b"first")
    os.ftruncate(record.fd, os.fstat(record.fd).st_size - 1)
    assert again(record).answer() is None


@pytest.mark.parametrize("data", [b"", b"\n", b"\xff\n", b'{"fact":"mended"}\n', b"[]\n"])
def test_record_of_something_else_is_refused_and_the_mount_is_kept(data):
    fds = [os.memfd_create("one"), os.memfd_create("two")]
    os.write(fds[1], data)
    with pytest.raises(errors.Unusable, match="its record makes no sense here"):
        fuse_connection.kept(fds)
    for fd in fds:
        os.close(fd)  # it is open


def test_half_a_connection_is_let_go():
    fd = os.memfd_create("one")
    assert fuse_connection.kept([fd]) is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert fuse_connection.kept([]) is None
