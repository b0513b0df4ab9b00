# SPDX-License-Identifier: Apache-2.0
"""The decision service's database contract, on a real PostgreSQL, and one that hangs or refuses."""

import time
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from acstor_decision.db import connection_url
from acstor_decision.db import database
from tests.fakes import decision_databases
from tests.fakes import faulty_proxy
from tests.lab.openstack import cloud
from tests.lab.openstack import postgresql as postgresql_lab

TIMEOUT_S = 2


@pytest.fixture(scope="module")
def postgresql(openstack_lab: cloud.Cloud) -> Iterator[postgresql_lab.PostgreSQL]:
    if postgresql_lab.folder_of_programs() is None:
        pytest.skip("PostgreSQL is not installed: run tools/install.sh")
    server = postgresql_lab.PostgreSQL(openstack_lab.folder)
    try:
        server.start()
        server.wait_ready()
        yield server
    finally:
        server.stop()


@pytest.fixture
def store(postgresql: postgresql_lab.PostgreSQL) -> Iterator[database.Database]:
    with decision_databases.opened(postgresql.new_database("contract")) as made:
        yield made


class TestPostgreSQL(decision_databases.Suite):
    """The suite on PostgreSQL."""


def test_hung_or_refusing_postgresql_is_an_error_and_is_retried(
    postgresql: postgresql_lab.PostgreSQL,
) -> None:
    with faulty_proxy.before(postgresql.port) as proxy:
        url = postgresql.new_database("hanging", port=proxy.port)
        with decision_databases.opened(url, TIMEOUT_S) as store:
            for fault, within_s in ((proxy.hang, 3 * TIMEOUT_S), (proxy.refuse, 3.0)):
                assert store.latest_epoch() == 0
                fault()
                for _ in range(2):  # over a connection that is there, and over a new one
                    began_s = time.monotonic()
                    with pytest.raises(database.DatabaseError) as caught:
                        store.latest_epoch()
                    assert time.monotonic() - began_s < within_s
                assert f"acstor@{proxy.address}" in str(caught.value)
                assert "[database] connection" in str(caught.value)
                proxy.pass_on()
            assert store.latest_epoch() == 0


def test_server_ends_statements_that_exceed_the_timeout(
    postgresql: postgresql_lab.PostgreSQL,
) -> None:
    url = connection_url.with_timeouts(postgresql.new_database("slow"), 1)
    with sa.create_engine(url).connect() as link, pytest.raises(sa.exc.OperationalError) as caught:
        link.execute(sa.text("SELECT pg_sleep(30)"))
    assert "statement timeout" in str(caught.value)
