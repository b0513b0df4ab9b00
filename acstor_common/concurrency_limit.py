# SPDX-License-Identifier: Apache-2.0
"""Bounds the threads that wait for another service at a time.

A service that answers HTTP has few threads. Without a bound, one other service that hangs takes
them all, and what needs only this process, such as ``/healthz``, is not answered either.
"""

import contextlib
import itertools
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Final

from acstor_common import errors

WAIT_S: Final = 1.0
"""A caller waits so long for a place at most; a call that takes longer is late."""


class LimitReached(errors.AcstorError):
    """All places are taken."""

    def __init__(self, what: str, most: int) -> None:
        super().__init__(what, most)
        self.what, self.most = what, most

    def __str__(self) -> str:
        return f"{self.most} others wait for {self.what}"


class ConcurrencyLimit:
    """The places of callers of one service.

    :param what: the service, for errors
    :param most: callers at a time
    :param clock: monotonic, in seconds
    """

    def __init__(self, what: str, most: int, clock: Callable[[], float]) -> None:
        self._what, self._most, self._clock = what, most, clock
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._began_s: dict[int, float] = {}

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """Hold a place; a caller waits for one WAIT_S at most, and not if all calls are late.

        :raises LimitReached: there is none
        """
        number = self._take()
        try:
            yield
        finally:
            with self._changed:
                del self._began_s[number]
                self._changed.notify()

    def _take(self) -> int:
        with self._changed:
            until_s = self._clock() + WAIT_S
            while len(self._began_s) >= self._most:
                all_late_s = max(self._began_s.values()) + WAIT_S
                left_s = min(until_s, all_late_s) - self._clock()
                if left_s <= 0:
                    raise LimitReached(self._what, self._most)
                self._changed.wait(left_s)
            number = next(self._numbers)
            self._began_s[number] = self._clock()
            return number
