# SPDX-License-Identifier: Apache-2.0
"""Limits concurrent reads of a store; a late one cannot be cancelled, and holds its slot."""

import collections
import http
import threading
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any
from typing import TypeVar

from acstor_glance.gateway import gateway_metrics
from acstor_glance.gateway import http_errors

T = TypeVar("T")

READS = 16  # concurrent reads of one store, in each process; each takes a thread of the WSGI server
TIMEOUT_S = 10.0
"""Timeout of a read from a store. An agent has timed out by then, and asks again."""
SERVICE = ""  # project of services, which may use all slots; a tenant's may use half of them
QUEUE_S = 1.0  # longest wait for a slot, after which the client is told to retry


class ReadAdmission:
    """The reads of one store: ``reads`` at a time, ``timeout_s`` each."""

    def __init__(
        self,
        name: str,
        reads: int,
        timeout_s: float,
        counters: gateway_metrics.StoreMetrics,
        *,
        queue_s: float = QUEUE_S,
    ) -> None:
        self._queue_s = queue_s
        self._name, self._reads, self._timeout_s = name, reads, timeout_s
        self._counters = counters
        self._places = threading.BoundedSemaphore(reads)
        self._threads = futures.ThreadPoolExecutor(reads, thread_name_prefix=f"store-{name}")
        self._lock = threading.Lock()
        self._late: set[futures.Future[Any]] = set()
        self._held: collections.Counter[str] = collections.Counter()  # slots by project

    def run(self, read: Callable[[], T], project_id: str = SERVICE) -> T:
        """Run ``read`` in a thread; HttpError if there is no slot, or no result in time."""
        self._acquire(project_id)
        began_s = time.monotonic()
        self._counters.count_start()
        job = self._threads.submit(read)
        job.add_done_callback(lambda job: self._ended(job, began_s, project_id))
        futures.wait((job,), self._timeout_s)
        with self._lock:
            if is_in_flight := not job.done():
                self._late.add(job)
        if is_in_flight or self._has_timed_out(job, began_s):
            self._counters.count_fault("late")
            why = f"store {self._name}: no answer within {self._timeout_s:g} s"
            raise http_errors.HttpError(http.HTTPStatus.GATEWAY_TIMEOUT, why)
        return job.result()

    def _acquire(self, project_id: str) -> None:
        """Wait for a slot, unless the project has its share: other projects need threads, too."""
        share = -(-self._reads // 2)
        with self._lock:
            if is_within := project_id == SERVICE or self._held[project_id] < share:
                self._held[project_id] += 1
        all_are_late = len(self._late) >= self._reads
        wait_s = 0.0 if all_are_late else min(self._queue_s, self._timeout_s)
        if is_within:
            if self._places.acquire(timeout=wait_s):
                return
            self._count_out(project_id)
        self._counters.count_fault("full")
        held = f"{self._reads} reads" if is_within else f"{share} reads of this project"
        raise http_errors.HttpError(
            http.HTTPStatus.SERVICE_UNAVAILABLE,
            f"store {self._name}: {held} are in progress, {len(self._late)} late",
            {"Retry-After": "1"},
        )

    def _count_out(self, project_id: str) -> None:
        with self._lock:
            self._held[project_id] -= 1
            self._held += collections.Counter()  # drops zero counts

    def _has_timed_out(self, job: futures.Future[Any], began_s: float) -> bool:
        """Return whether a read failed by its own timeout, at the same time as ours."""
        return job.exception() is not None and time.monotonic() - began_s >= self._timeout_s

    def _ended(self, job: futures.Future[Any], began_s: float, project_id: str) -> None:
        self._counters.count_end(time.monotonic() - began_s)
        with self._lock:
            self._late.discard(job)
        self._count_out(project_id)
        self._places.release()
