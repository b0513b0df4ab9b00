# SPDX-License-Identifier: Apache-2.0
"""A process stuck in the kernel: see tests/functional/test_agent_hung_source.py."""

import fcntl
import os
import subprocess
import sys

from acstor_agent.runtime import process_cleanup

CHILD = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(fd, fcntl.LOCK_EX)
print("ready", flush=True)
sys.stdin.read()
"""


def test_only_zombies_and_reaped_processes_have_ended():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert not process_cleanup.has_ended(child.pid)
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process_cleanup.has_ended(child.pid)
    child.wait()
    assert process_cleanup.has_ended(child.pid)
    assert not process_cleanup.has_ended(0)  # a process that is invisible here


def test_lock_holders_are_found(tmp_path):
    path = tmp_path / "lock"
    path.touch()
    inode = path.stat().st_ino
    assert process_cleanup.lock_holders(inode) == []
    argv = [sys.executable, "-c", CHILD, str(path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"ready\n"
        assert process_cleanup.lock_holders(inode) == [child.pid]
        child.stdin.close()
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert process_cleanup.lock_holders(inode) == [os.getpid()]
