# SPDX-License-Identifier: Apache-2.0
"""Who leads when the leader dies, with every lock service that is named in the manual."""

import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

from acstor_decision import leader_election
from tests.lab import decision
from tests.lab import runs
from tests.lab import tuned
from tests.lab.openstack import cloud as openstack
from tests.lab.openstack import etcd as etcd_lab

COLLECTION_S = 4.0
START_S = 60.0
SLACK_S = 6.0  # of a machine on which much else runs


def _file(folder: pathlib.Path, request: pytest.FixtureRequest) -> str:
    return f"file://{folder}/coordination"


def _mysql(folder: pathlib.Path, request: pytest.FixtureRequest) -> str:
    mariadb = request.getfixturevalue("mariadb")
    mariadb.new_database("takeover")
    return f"mysql://root@127.0.0.1:{mariadb.port}/takeover"


def _etcd(folder: pathlib.Path, request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("etcd").url)


@pytest.fixture
def etcd(openstack_lab: openstack.Cloud) -> etcd_lab.Etcd:
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed: run tools/install.sh")
    made = etcd_lab.Etcd(openstack_lab.folder)
    made.start()
    made.wait_ready()
    return made


@pytest.mark.parametrize("service", [_file, _mysql, _etcd])
def test_standby_leads_within_two_collections(service, tmp_path, request):
    url, constants = service(tmp_path, request), {tuned.COLLECTION_S: COLLECTION_S}
    database = f"sqlite:///{tmp_path}/decision.sqlite"
    one, two = (
        decision.Instance(
            tmp_path,
            name,
            "kombu+memory:////",
            database,
            constants=constants,
            coordination_url=url,
        )
        for name in ("one", "two")
    )
    with one:
        runs.wait_for(one.leads, START_S, "a leader", one.log)
        with two:
            runs.wait_for(lambda: " is ready\n" in two.log(), START_S, "the other", two.log)
            time.sleep(2 * COLLECTION_S)
            assert not two.leads()
            one.kill()
            killed_s = time.monotonic()
            runs.wait_for(two.leads, 2 * COLLECTION_S + SLACK_S, "another leader", two.log)
            print(f"{service.__name__}: another led after {time.monotonic() - killed_s:.1f} s")


CANDIDATE = """
import sys
from acstor_decision import leader_election
lead = leader_election.LeaderElection(sys.argv[1], "paused", lease_s=2.0)
for _ in sys.stdin:
    print(lead.is_leader(), flush=True)
"""


def test_leader_whose_lease_ended_during_a_pause_does_not_lead_and_may_lead_again(etcd):
    command = [sys.executable, "-W", "ignore", "-c", CANDIDATE, etcd.url]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as paused:

        def leads():
            print(file=paused.stdin, flush=True)
            return paused.stdout.readline() == "True\n"

        try:
            runs.wait_for(leads, START_S, "a leader", etcd.log)
            other = leader_election.LeaderElection(etcd.url, "other", lease_s=2.0)
            assert not other.is_leader()
            paused.send_signal(signal.SIGSTOP)
            runs.wait_for(other.is_leader, START_S, "another leader", etcd.log)
            paused.send_signal(signal.SIGCONT)
            assert not leads()
            assert other.is_leader()
            other.step_down()
            runs.wait_for(leads, START_S, "the former leader", etcd.log)
        finally:
            paused.kill()
