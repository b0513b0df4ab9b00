# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from acstor_decision import leader_election
from tests.fakes import silent_server

HOLDER = """
import sys, time
from acstor_decision import leader_election
lead = leader_election.LeaderElection(sys.argv[1], "other")
print(lead.is_leader(), flush=True)
time.sleep(600)
"""


def test_one_of_two_instances_leads_until_it_steps_down(tmp_path: pathlib.Path) -> None:
    url = f"file://{tmp_path}/coordination"
    one, two = (leader_election.LeaderElection(url, name) for name in ("one", "two"))
    assert [one.is_leader(), two.is_leader(), one.is_leader()] == [True, False, True]
    one.step_down()
    assert two.is_leader()
    assert not one.is_leader()
    two.step_down()


def test_killed_leader_is_replaced(tmp_path: pathlib.Path) -> None:
    url = f"file://{tmp_path}/coordination"
    command = [sys.executable, "-W", "ignore", "-c", HOLDER, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == b"True\n"
            own = leader_election.LeaderElection(url, "own")
            assert not own.is_leader()
        finally:
            os.kill(holder.pid, signal.SIGKILL)
    assert own.is_leader()
    own.step_down()


@pytest.mark.expect_log("mysql://127.0.0.1:1/db cannot determine the leader")
def test_unreachable_coordination_elects_no_leader(tmp_path: pathlib.Path) -> None:
    lead = leader_election.LeaderElection("mysql://user:secret@127.0.0.1:1/db", "one")
    assert not lead.is_leader() and not lead.is_leader()


@pytest.mark.expect_log("cannot determine the leader: coordination does not answer within 0.5 s")
def test_hanging_coordination_elects_no_leader_and_times_out() -> None:
    with silent_server.serve() as server:
        url = f"mysql://root@{server.address}/db"
        lead = leader_election.LeaderElection(url, "one", answer_s=0.5)
        began_s = time.monotonic()
        assert not lead.is_leader() and not lead.is_leader()
        lead.step_down()
        assert time.monotonic() - began_s < 10
        assert server.connections == 1
