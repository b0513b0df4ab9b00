# SPDX-License-Identifier: Apache-2.0
"""Limits concurrent flatten jobs, in all and per project; never waits."""

import collections
import contextlib
import http
import threading
from collections.abc import Iterator

from acstor_glance.gateway import http_errors

JOBS = 4  # concurrent jobs of one process; each takes a thread and 30 to 100 MiB of memory
RETRY_AFTER_S = 30


class JobSlots:
    """The slots of one process, and how many one project may use."""

    def __init__(self, limit: int, project_limit: int) -> None:
        self._limit, self._project_limit = limit, project_limit
        self._lock = threading.Lock()
        self._taken: collections.Counter[str] = collections.Counter()

    @contextlib.contextmanager
    def acquire_slot(self, project_id: str) -> Iterator[None]:
        """Hold a slot during the block; raises HttpError if there is none."""
        with self._lock:
            self._check(project_id)
            self._taken[project_id] += 1
        try:
            yield
        finally:
            with self._lock:
                self._taken[project_id] -= 1
                self._taken += collections.Counter()  # drops zero counts

    def _check(self, project_id: str) -> None:
        whose, count, limit = "", self._taken.total(), self._limit
        if count < limit:
            whose, count, limit = " of this project", self._taken[project_id], self._project_limit
        if count >= limit:
            raise http_errors.HttpError(
                http.HTTPStatus.SERVICE_UNAVAILABLE,
                f"{count} flatten jobs{whose} are in progress, of {limit}",
                {"Retry-After": str(RETRY_AFTER_S)},
            )
