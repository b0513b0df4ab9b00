# SPDX-License-Identifier: Apache-2.0
"""The health check queries the database once a second, for any number of requests."""

from concurrent import futures

import pytest

from acstor_decision.api import health_check
from acstor_decision.db import database
from tests.fakes import manual_clock


class Store:
    """A database that knows only its latest epoch."""

    def __init__(self) -> None:
        self.asked, self.is_gone = 0, False

    def latest_epoch(self) -> int:
        self.asked += 1
        if self.is_gone:
            raise database.DatabaseError("sqlite://", "gone")
        return 7


@pytest.mark.expect_log("the database fails: .*gone")
def test_health_check_queries_the_database_once_a_second() -> None:
    store, now_s = Store(), [100.0]
    check = health_check.HealthCheck(store, manual_clock.FunctionClock(lambda: now_s[0]))  # type: ignore[arg-type]
    with futures.ThreadPoolExecutor(16) as pool:
        assert all(pool.map(lambda _: check.has_database(), range(64)))
    assert store.asked == 1
    store.is_gone = True
    now_s[0] += health_check.KEPT_S - 0.001
    assert check.has_database()
    now_s[0] += 0.001
    assert not check.has_database() and not check.has_database()
    assert store.asked == 2
    store.is_gone = False
    now_s[0] += health_check.KEPT_S
    assert check.has_database()
