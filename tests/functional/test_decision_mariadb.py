# SPDX-License-Identifier: Apache-2.0
"""The decision service's database contract and its choice of a leader, on a real MariaDB."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from acstor_decision import leader_election
from acstor_decision.db import database
from tests.fakes import decision_databases
from tests.lab.openstack import mariadb as mariadb_lab

HOLDER = """
import sys, time
from acstor_decision import leader_election
lead = leader_election.LeaderElection(sys.argv[1], "other")
print(lead.is_leader(), flush=True)
time.sleep(600)
"""

NAMED = r"\[database\] connection: mysql\+pymysql://hanging:\*\*\*@127\.0\.0\.1:\d+/hanging"


@pytest.fixture
def store(mariadb: mariadb_lab.MariaDB) -> Iterator[database.Database]:
    with decision_databases.opened(mariadb.new_database("contract")) as made:
        yield made


class TestMariaDB(decision_databases.Suite):
    """The suite on MariaDB."""


def test_killed_instance_loses_leadership(mariadb: mariadb_lab.MariaDB) -> None:
    mariadb.new_database("coordination")
    url = f"mysql://root@127.0.0.1:{mariadb.port}/coordination"
    command = [sys.executable, "-W", "ignore", "-c", HOLDER, url]
    own = leader_election.LeaderElection(url, "own")
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == b"True\n"
            assert not own.is_leader()
        finally:
            os.kill(holder.pid, signal.SIGKILL)
    for _ in range(100):  # the server notices the end of the connection a moment later
        if own.is_leader():
            break
    assert own.is_leader()
    own.step_down()


def test_hung_database_is_an_error_and_is_retried(mariadb: mariadb_lab.MariaDB) -> None:
    url = f"{mariadb.new_database('hanging')}?read_timeout=2&connect_timeout=2"
    url = url.replace("//root@", "//hanging:secret@")
    with decision_databases.opened(url) as store:
        assert store.latest_epoch() == 0
        mariadb.signal(signal.SIGSTOP)
        try:
            for _ in range(2):  # over a connection that is there, and over a new one
                began_s = time.monotonic()
                with pytest.raises(database.DatabaseError, match=NAMED) as refused:
                    store.latest_epoch()
                assert "secret" not in str(refused.value)
                assert time.monotonic() - began_s < 15
        finally:
            mariadb.signal(signal.SIGCONT)
        assert store.latest_epoch() == 0
