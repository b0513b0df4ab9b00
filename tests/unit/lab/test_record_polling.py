# SPDX-License-Identifier: Apache-2.0
import pytest

from acstor_common import errors
from tests.lab.openstack import record_polling

BUILDING = [("building", "spawning", 0, "compute1", 0, None)]
LATER = [("building", "spawning", 0, "compute1", 0, "later")]
STOPPED = [("stopped", None, 4, "compute1", 0, None)]
ACTIVE = [("active", None, 1, "compute1", 0, None)]


class Database:
    """Has these rows, one after the other; the last ones stay."""

    def __init__(self, *rows):
        self._rows, self.now = list(rows), None

    def execute(self, _query):
        self.now = self._rows.pop(0) if self._rows else self.now
        return self.now


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(record_polling, "PAUSE_S", 0.0)


def wait(database, is_early):
    """Return the rows at each call of the API until the server is active."""
    asked = []

    def is_active():
        asked.append(database.now)
        return database.now is ACTIVE

    record_polling.wait_for(database, "SELECT", is_active, 5.0, "server", str, is_early)
    return asked


def test_api_is_called_first_and_after_each_change_of_rows():
    database = Database(BUILDING, BUILDING, LATER, LATER, ACTIVE)
    assert wait(database, lambda rows: False) == [BUILDING, LATER, ACTIVE]


def test_changes_while_a_task_runs_call_no_api():
    database = Database(BUILDING, LATER, BUILDING, ACTIVE)
    assert wait(database, record_polling.has_task) == [BUILDING, ACTIVE]


def test_rows_that_are_as_before_a_task_call_the_api_again():
    database = Database(STOPPED, BUILDING, STOPPED, ACTIVE)
    assert wait(database, record_polling.has_task) == [STOPPED, STOPPED, ACTIVE]


def test_wait_names_what_is_late():
    with pytest.raises(errors.Unusable, match=r"server: not so after 0 s: why"):
        record_polling.wait_for(Database(), "SELECT", lambda: False, 0.0, "server", lambda: "why")
