# SPDX-License-Identifier: Apache-2.0
"""Fair limit on the threads that use another service, which may hang, at the same time.

A free slot goes to the waiting caller with the fewest slots, then to the one served longest ago.
"""

import contextlib
import dataclasses
import itertools
import math
import sys
import threading
from collections.abc import Iterator
from typing import Final

from acstor_common import errors
from acstor_common.model import clocks

_REMEMBERED_S: Final = 60.0  # after this time a caller's last request is forgotten


@dataclasses.dataclass(eq=False)
class LimitReached(errors.AcstorError):
    """All slots are taken."""

    what: str
    limit: int
    text = "{limit} others wait for {what}"


class _Call:
    """A call that waits for a slot, or holds one since ``began_s``."""

    def __init__(self, caller: str, number: int) -> None:
        self.caller, self.number, self.began_s = caller, number, 0.0


class ConcurrencyLimit:
    """Slots for calls; a call waits ``wait_s`` at most, and is late if it runs longer.

    If more than ``max_waiting`` calls wait, the lowest-ranked is evicted.
    """

    def __init__(
        self,
        what: str,
        limit: int,
        clock: clocks.Clock,
        wait_s: float = 1.0,
        max_waiting: int = sys.maxsize,
    ) -> None:
        self._what, self._limit, self._clock = what, limit, clock
        self._wait_s, self._max_waiting = wait_s, max_waiting
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._calls: list[_Call] = []
        self._waiting: list[_Call] = []
        self._asked_s: dict[str, float] = {}

    @contextlib.contextmanager
    def hold_slot(self, caller: str = "") -> Iterator[None]:
        """Hold a slot, or raise LimitReached; does not wait if all running calls are late."""
        with self._changed:
            call = _Call(caller, next(self._numbers))
            self._waiting.append(call)
            try:
                self._wait(call)
            finally:
                self._end_wait(call)
            call.began_s = self._clock.monotonic()
            self._calls.append(call)
        try:
            yield
        finally:
            with self._changed:
                self._calls.remove(call)
                self._changed.notify_all()

    def _wait(self, call: _Call) -> None:
        if len(self._waiting) > self._max_waiting:
            self._waiting.remove(max(self._waiting, key=self._rank))
            self._changed.notify_all()
        until_s = self._clock.monotonic() + self._wait_s
        while not self._is_next(call):
            latest_s = max((running.began_s for running in self._calls), default=math.inf)
            left_s = min(until_s, latest_s + self._wait_s) - self._clock.monotonic()
            if left_s <= 0 or call not in self._waiting:
                raise LimitReached(self._what, self._limit)
            self._changed.wait(left_s)

    def _is_next(self, call: _Call) -> bool:
        is_free = len(self._calls) < self._limit
        return is_free and call in self._waiting and call is min(self._waiting, key=self._rank)

    def _rank(self, call: _Call) -> tuple[int, float, int]:
        held = sum(running.caller == call.caller for running in self._calls)
        return held, self._asked_s.get(call.caller, -math.inf), call.number

    def _end_wait(self, call: _Call) -> None:
        if call in self._waiting:
            self._waiting.remove(call)
        now_s = self._clock.monotonic()
        recent = {
            user: at_s for user, at_s in self._asked_s.items() if now_s < at_s + _REMEMBERED_S
        }
        self._asked_s = {**recent, call.caller: now_s}
        self._changed.notify_all()
