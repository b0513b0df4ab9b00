# SPDX-License-Identifier: Apache-2.0
"""Signals of the supervisor to a worker."""

import ctypes
import os
import pathlib
import signal
import socket

import pytest

from acstor_agent.process import child_process
from tests.fakes import hosts

_libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def links():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.settimeout(30)
        yield ours, theirs


def waits_for_room(pid):
    return "sock" in pathlib.Path(f"/proc/{pid}/wchan").read_text()


def has_heard(pid):
    fields = dict(
        line.split(":\t") for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return int(fields["ShdPnd"], 16) == 0


def test_signal_does_not_interrupt_a_response_being_written(links):
    ours, theirs = links
    theirs.setblocking(False)
    sent = 0
    try:
        while True:
            sent += theirs.send(b"x" * 4096) // 4096
    except BlockingIOError:
        theirs.setblocking(True)
    if not (pid := os.fork()):
        child_process.await_stored_mount(os.getppid())
        length = _libc.write(
            theirs.fileno(), b"answer", 6
        )  # as in libfuse, which does not repeat it
        os._exit(0 if length == 6 else 1)
    try:
        hosts.wait_until(lambda: waits_for_room(pid), "the blocked write")
        os.kill(pid, child_process.MOUNT_STORED)
        hosts.wait_until(lambda: has_heard(pid), "the signal")
        for _ in range(sent):
            ours.recv(4096)
        assert ours.recv(4096) == b"answer"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
