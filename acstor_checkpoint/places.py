# SPDX-License-Identifier: Apache-2.0
"""How many connections a vault has at a time, from whom.

No address and no host takes what others need.  Who has not shown yet which host he
is has places of his own, few for each address and for a short time.
"""

import collections
import contextlib
import threading
from collections.abc import Iterator
from typing import Final

from acstor_common import ids
from acstor_common import vault_paths

UNAUTHENTICATED: Final = 64
UNAUTHENTICATED_OF_ADDRESS: Final = 8
CONNECTIONS: Final = 256
"""Each is a thread, which holds a chunk at a time: 16 MiB for all, 1 GiB in chunks of 4 MiB."""


class Places:
    """Counts connections; may be used by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unauthenticated = _Counted(UNAUTHENTICATED, UNAUTHENTICATED_OF_ADDRESS)
        self._hosts = _Counted(CONNECTIONS, vault_paths.CONNECTIONS_OF_HOST)

    def unauthenticated(self, address: str) -> bool:
        """Take a place for somebody at an address; say whether there was one."""
        with self._lock:
            return self._unauthenticated.take(address)

    def unauthenticated_left(self, address: str) -> None:
        """Give the place back."""
        with self._lock:
            self._unauthenticated.give_back(address)

    @contextlib.contextmanager
    def host(self, host: ids.HostId) -> Iterator[bool]:
        """Have a place for a host; it is False if there is none."""
        with self._lock:
            is_there = self._hosts.take(host)
        try:
            yield is_there
        finally:
            if is_there:
                with self._lock:
                    self._hosts.give_back(host)


class _Counted:
    def __init__(self, limit: int, limit_of_one: int) -> None:
        self._limit, self._limit_of_one = limit, limit_of_one
        self._taken: collections.Counter[str] = collections.Counter()

    def take(self, who: str) -> bool:
        if self._taken.total() >= self._limit or self._taken[who] >= self._limit_of_one:
            return False
        self._taken[who] += 1
        return True

    def give_back(self, who: str) -> None:
        self._taken[who] -= 1
        self._taken += collections.Counter()  # forget who has none
