# SPDX-License-Identifier: Apache-2.0
"""The decision service's database contract and its choice of a leader, on a real MariaDB."""

import collections
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from concurrent import futures

import pytest
import sqlalchemy as sa
from sqlalchemy import orm

from acstor_decision import leader_election
from acstor_decision.db import database
from acstor_decision.db import models
from tests.fakes import decision_databases
from tests.lab import runs
from tests.lab.openstack import mariadb as mariadb_lab

DEADLINE_S = 60.0
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


def test_deadlocked_transactions_are_repeated_until_both_succeed(store: database.Database) -> None:
    hosts, met, attempts = ("h1", "h2"), threading.Barrier(2, timeout=60), collections.Counter()
    for host in hosts:
        store.record_listener(host, 1.0)

    def change(first: str, second: str) -> None:
        def work(session: orm.Session) -> None:
            attempts[first] += 1
            for host in (first, second):
                row = models.Listener
                statement = sa.update(row).where(row.listener == host)
                session.execute(statement.values(reported_s=row.reported_s + 1))
                if host == first and attempts[first] == 1:
                    met.wait()  # each holds the lock that the other needs

        store._write(work)

    with futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(change, hosts, reversed(hosts)))
    assert sorted(attempts.values()) == [1, 2]
    assert [listener.reported_s for listener in store.list_listeners()] == [3.0, 3.0]


def test_password_may_contain_characters_that_urls_quote(mariadb: mariadb_lab.MariaDB) -> None:
    password, url = "p@s:s/%w?#", mariadb.new_database("quoted")
    quoted = urllib.parse.quote(password, safe="")
    with decision_databases.opened(url.replace("//root@", f"//quoted:{quoted}@")) as store:
        assert store.latest_epoch() == 0
        assert store.engine().url.password == password


@pytest.mark.expect_log("cannot determine the leader")
@pytest.mark.allow_log("unreleased lock")
def test_leader_that_lost_its_connection_does_not_lead(mariadb: mariadb_lab.MariaDB) -> None:
    mariadb.new_database("lost")
    url = f"mysql://root@127.0.0.1:{mariadb.port}/lost"
    own, other = (leader_election.LeaderElection(url, name) for name in ("own", "other"))
    assert own.is_leader() and own.is_leader()
    for [link] in mariadb.execute("SELECT id FROM information_schema.processlist WHERE db='lost'"):
        mariadb.execute(f"KILL {link}")
    runs.wait_for(other.is_leader, DEADLINE_S, "another leader", mariadb.log)
    assert [own.is_leader(), own.is_leader(), other.is_leader()] == [False, False, True]
    other.step_down()
    assert own.is_leader()
    own.step_down()
