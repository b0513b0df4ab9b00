# SPDX-License-Identifier: Apache-2.0
"""Handler of ``/healthz``: needs no token, so it caches the result to protect the database."""

import logging
import threading
import time

from acstor_common.model import clocks
from acstor_decision.db import database

LOG = logging.getLogger(__name__)

KEPT_S = 1.0


class HealthCheck:
    """Checks the database."""

    def __init__(self, store: database.Database, clock: clocks.Clock = time) -> None:
        self._store, self._clock = store, clock
        self._lock = threading.Lock()
        self._answers, self._until_s = True, -float("inf")

    def has_database(self) -> bool:
        """Return whether the database responded, at most KEPT_S ago."""
        with self._lock:
            if self._clock.monotonic() >= self._until_s:
                self._answers = self._asked()
                self._until_s = self._clock.monotonic() + KEPT_S
            return self._answers

    def _asked(self) -> bool:
        try:
            self._store.latest_epoch()
        except database.DatabaseError as e:
            LOG.warning("the database fails: %s", e)
            return False
        return True
