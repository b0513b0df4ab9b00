# SPDX-License-Identifier: Apache-2.0
"""Locks by key, each of which exists while it is held or waited for."""

import contextlib
from collections.abc import AsyncIterator
from collections.abc import Hashable
from typing import Generic
from typing import TypeVar

import trio

K = TypeVar("K", bound=Hashable)


class KeyedLocks(Generic[K]):
    """A lock for each key, in order of arrival."""

    def __init__(self) -> None:
        self._locks: dict[K, trio.Lock] = {}

    def __len__(self) -> int:
        return len(self._locks)

    def __contains__(self, key: K) -> bool:
        return key in self._locks

    @contextlib.asynccontextmanager
    async def hold(self, key: K) -> AsyncIterator[None]:
        """Hold the lock of a key during the block."""
        lock = self._locks.setdefault(key, trio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked() and self._locks.get(key) is lock:  # so it has no waiters
                del self._locks[key]
