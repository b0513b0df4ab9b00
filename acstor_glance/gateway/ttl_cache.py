# SPDX-License-Identifier: Apache-2.0
"""Answers that count for a while: so many at most, the one that was used longest ago goes first."""

import collections
import threading
import time
from collections.abc import Callable
from collections.abc import Hashable
from typing import Generic
from typing import TypeVar

T = TypeVar("T")


class TtlCache(Generic[T]):
    """What was learnt, by a key; may be used by many threads.

    :param for_s: how long an answer counts
    :param most: answers at most
    :param clock: never goes back
    """

    def __init__(
        self, for_s: float, most: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._for_s, self._most, self._clock = for_s, most, clock
        self._known: collections.OrderedDict[Hashable, tuple[float, T]] = collections.OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> T | None:
        """Return what is known of a key; None: nothing, or it is too old."""
        with self._lock:
            found = self._known.get(key)
            if found is None or self._clock() >= found[0]:
                return None
            self._known.move_to_end(key)
            return found[1]

    def put(self, key: Hashable, value: T) -> None:
        """Remember an answer from now on."""
        with self._lock:
            self._known[key] = (self._clock() + self._for_s, value)
            self._known.move_to_end(key)
            while len(self._known) > self._most:
                self._known.popitem(last=False)

    def invalidate(self, key: Hashable) -> None:
        """Forget what is known of a key, if anything is."""
        with self._lock:
            self._known.pop(key, None)
