# SPDX-License-Identifier: Apache-2.0
"""Cache with a time limit and least-recently-used eviction."""

import threading
import time
from collections.abc import Hashable
from typing import Generic
from typing import TypeVar

from acstor_common.model import clocks
from acstor_common.util import lru_table

T = TypeVar("T")


class TtlCache(Generic[T]):
    """Up to ``limit`` values by key, for ``ttl_s`` each; thread-safe."""

    def __init__(self, ttl_s: float, limit: int, clock: clocks.Clock = time) -> None:
        self._ttl_s, self._clock = ttl_s, clock
        self._known: lru_table.LruTable[Hashable, tuple[float, T]] = lru_table.LruTable(limit)
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> T | None:
        """Return the value of a key; None: missing or expired."""
        with self._lock:
            found = self._known.get_as_used(key)
            return found[1] if found is not None and self._clock.monotonic() < found[0] else None

    def put(self, key: Hashable, value: T) -> None:
        """Store a value."""
        with self._lock:
            self._known[key] = (self._clock.monotonic() + self._ttl_s, value)

    def invalidate(self, key: Hashable) -> None:
        """Drop the value of a key."""
        with self._lock:
            self._known.pop(key, None)
