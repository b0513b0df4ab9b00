# SPDX-License-Identifier: Apache-2.0
"""The fd holder keeps running when it has no descriptor left for a caller."""

import resource
import subprocess
import sys

import pytest

from acstor_agent.process import fd_holder
from tests.fakes import hosts


@pytest.fixture
def process(tmp_path):
    argv = [sys.executable, "-m", "acstor_agent.cmd.holder", tmp_path / "state"]
    with subprocess.Popen(argv, stderr=subprocess.PIPE) as made:
        yield made
        made.kill()


def test_holder_answers_again_after_it_ran_out_of_descriptors(process, tmp_path):
    state_dir = tmp_path / "state"
    hosts.wait_until(lambda: fd_holder.is_answering(state_dir), "the holder")
    used, many = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (3, many))
    # An accept that waits already has its descriptor: one caller may still be answered.
    assert not (fd_holder.is_answering(state_dir) and fd_holder.is_answering(state_dir))
    assert b"cannot accept clients now: Too many open files" in process.stderr.readline()
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (used, many))
    hosts.wait_until(lambda: fd_holder.is_answering(state_dir), "the holder again")
    assert process.poll() is None


def test_check_says_whether_a_holder_answers(process, tmp_path):
    def check(state_dir):
        argv = [sys.executable, "-m", "acstor_agent.cmd.holder", "--check", state_dir]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)

    hosts.wait_until(lambda: fd_holder.is_answering(tmp_path / "state"), "the holder")
    assert check(tmp_path / "state").returncode == 0
    missing = check(tmp_path / "nowhere")
    assert missing.returncode == 1
    assert "no holder answers" in missing.stderr
