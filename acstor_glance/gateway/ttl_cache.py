# SPDX-License-Identifier: Apache-2.0
"""Cache with a time limit and least-recently-used eviction."""

import collections
import threading
import time
from collections.abc import Callable
from collections.abc import Hashable
from typing import Generic
from typing import TypeVar

T = TypeVar("T")


class TtlCache(Generic[T]):
    """Up to ``most`` values by key, for ``for_s`` each; thread-safe."""

    def __init__(
        self, for_s: float, most: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._for_s, self._most, self._clock = for_s, most, clock
        self._known: collections.OrderedDict[Hashable, tuple[float, T]] = collections.OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> T | None:
        """Return the value of a key; None: missing or expired."""
        with self._lock:
            found = self._known.get(key)
            if found is None or self._clock() >= found[0]:
                return None
            self._known.move_to_end(key)
            return found[1]

    def put(self, key: Hashable, value: T) -> None:
        """Store a value."""
        with self._lock:
            self._known[key] = (self._clock() + self._for_s, value)
            self._known.move_to_end(key)
            while len(self._known) > self._most:
                self._known.popitem(last=False)

    def invalidate(self, key: Hashable) -> None:
        """Drop the value of a key."""
        with self._lock:
            self._known.pop(key, None)
