# SPDX-License-Identifier: Apache-2.0
"""What the decision service asks of a database; every kind of database runs this.

SQLite runs here; tests/functional/test_decision_mariadb.py runs the same on a real MariaDB.
"""

import pathlib
from collections.abc import Iterator

import pytest

from acstor_decision.db import database
from tests.fakes import decision_databases


@pytest.fixture
def store(tmp_path: pathlib.Path) -> Iterator[database.Database]:
    with decision_databases.opened(f"sqlite:///{tmp_path}/decision.sqlite") as made:
        yield made


class TestSqlite(decision_databases.Suite):
    """The suite on SQLite."""
