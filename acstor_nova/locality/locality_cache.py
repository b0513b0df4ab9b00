# SPDX-License-Identifier: Apache-2.0
"""Tables of images' locality, which a thread fetches for the requests of nova-scheduler.

A request waits WAIT_S at most, and only for an image without a fresh table, while the service
answers. Only the standard library's threads and locks are used, which work with eventlet, too.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from acstor_common import errors
from acstor_common.model import clocks
from acstor_common.util import backoff
from acstor_common.util import log_once
from acstor_common.util import lru_table
from acstor_common.util import supervision
from acstor_common.wire import decision_messages
from acstor_nova.locality import host_weight

LOG = logging.getLogger(__name__)

NAME = "image-locality"
MAX_TABLES = 256  # images of which a table is kept; one of 1,000 hosts takes 0.2 MB
MAX_WANTED = 64  # images that wait for the thread


class Timings(NamedTuple):
    """Timings in seconds."""

    wait_s: float = 0.05  # longest wait of a request
    fresh_s: float = 5.0  # age at which a table is fetched again
    stale_s: float = 20.0  # age from which a table is not used
    first_retry_s: float = 1.0  # pause after the first failure; it doubles
    longest_retry_s: float = 30.0  # longest pause after failures


DEFAULT_TIMINGS = Timings()


class _Entry(NamedTuple):
    table: host_weight.LocalityTable
    fetched_s: float


class LocalityCache:
    """The tables of one process; any thread may call it."""

    def __init__(
        self,
        fetch: Callable[[str], decision_messages.ImageLocality],  # raises errors.AcstorError
        timings: Timings = DEFAULT_TIMINGS,
        clock: clocks.Clock = time,
    ) -> None:
        self._fetch, self._timings, self._clock = fetch, timings, clock
        self._tables = lru_table.LruTable[str, _Entry](MAX_TABLES)
        self._wanted = lru_table.LruTable[str, None](MAX_WANTED)
        self._fetching = ""
        self._changed = threading.Condition()
        self._answers_in_time = True
        self._failures = 0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._trouble = log_once.LogOnce(LOG)

    def lookup(self, image_id: str) -> host_weight.LocalityTable | None:
        """Return the table of an image, None if not in time; RuntimeError without a thread."""
        ends_s = self._clock.monotonic() + self._timings.wait_s
        with self._changed:
            entry = self._tables.get_as_used(image_id)
            if self._age_s(entry) < self._timings.fresh_s:
                return entry and entry.table
            self._request(image_id)
            while self._age_s(entry) >= self._timings.stale_s:
                left_s = ends_s - self._clock.monotonic()
                if not self._answers_in_time or left_s <= 0:
                    self._answers_in_time = False  # do not let others wait either
                    return None
                self._changed.wait(left_s)
                entry = self._tables.get(image_id)
            return entry and entry.table

    def stop(self) -> None:
        """End the thread after its current request."""
        with self._changed:
            self._stopping.set()
            self._changed.notify_all()

    def _age_s(self, entry: _Entry | None) -> float:
        return self._clock.monotonic() - entry.fetched_s if entry is not None else float("inf")

    def _request(self, image_id: str) -> None:
        if image_id != self._fetching:
            self._wanted[image_id] = None
            self._changed.notify_all()
        if self._thread is None:
            self._thread = supervision.start(NAME, self._run, self._stopping, is_vital=False)

    # In the thread

    def _run(self) -> None:
        while (image_id := self._next_wanted()) is not None:
            began_s = self._clock.monotonic()
            try:
                table = host_weight.make_table(self._fetch(image_id))
            except errors.AcstorError as e:
                self._fail(e)
            else:
                self._keep(image_id, _Entry(table, began_s))

    def _next_wanted(self) -> str | None:
        with self._changed:
            self._fetching = ""
            while not self._wanted and not self._stopping.is_set():
                self._changed.wait()
            if self._stopping.is_set():
                return None
            self._fetching, _ = self._wanted.popitem()  # the newest
            return self._fetching

    def _keep(self, image_id: str, entry: _Entry) -> None:
        with self._changed:
            self._failures = 0
            self._tables[image_id] = entry
            self._answers_in_time = self._age_s(entry) < self._timings.wait_s
            self._changed.notify_all()
        self._trouble.log_warning("")

    def _fail(self, why: errors.AcstorError) -> None:
        self._trouble.log_warning(f"hosts are not weighed by the images that they have: {why}")
        with self._changed:
            self._answers_in_time = False
            self._wanted.clear()
            self._failures += 1
            self._changed.notify_all()
        first_s, longest_s = self._timings.first_retry_s, self._timings.longest_retry_s
        self._stopping.wait(backoff.pause_s(self._failures - 1, first_s, longest_s))
