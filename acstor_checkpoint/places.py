# SPDX-License-Identifier: Apache-2.0
"""Connections that a vault has at a time.

A connection is unauthenticated until its TLS handshake has shown which host it is from.
Unauthenticated connections have few places, and never keep a host out: when the places are taken,
a new connection displaces the oldest one of the address that has most of them.  Each address at
which hosts of the v-node table stand has places of its own, which other addresses cannot take.
Authenticated hosts have other places, and keep them.
"""

import collections
import contextlib
import socket
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Final

from acstor_common import ids
from acstor_common import vault_paths

UNAUTHENTICATED: Final = 64
"""Of all addresses at which no host stands."""
UNAUTHENTICATED_OF_HOST: Final = 8
"""Of each host of the table, at its address."""
CONNECTIONS: Final = 256
"""Each is a thread, which holds a chunk at a time: 16 MiB for all, 1 GiB in chunks of 4 MiB."""


class Places:
    """Counts connections and displaces unauthenticated ones; may be used by many threads.

    :param hosts_at: returns how many hosts of the v-node table stand at an address
    """

    def __init__(self, hosts_at: Callable[[str], int | None] = lambda ip: 0) -> None:
        self._lock = threading.Lock()
        self._hosts_at = hosts_at
        self._shared: dict[socket.socket, str] = {}  # the oldest first
        self._of_hosts: dict[str, dict[socket.socket, str]] = {}  # by address, in the same order
        self._hosts = _Counted(CONNECTIONS, vault_paths.CONNECTIONS_OF_HOST)

    def add(self, handle: socket.socket, address: str) -> None:
        """Give an unauthenticated connection a place; another one may be ended for it.

        :param handle: a descriptor of the connection that stays open until :meth:`remove`
        """
        hosts = self._hosts_at(address)
        with self._lock:
            if hosts:
                waiting = self._of_hosts.setdefault(address, {})
                limit = UNAUTHENTICATED_OF_HOST * hosts
            else:
                waiting, limit = self._shared, UNAUTHENTICATED
            if len(waiting) >= limit:
                _displace_one(waiting)
            waiting[handle] = address

    def remove(self, handle: socket.socket, address: str) -> None:
        """Free the place of a connection: it is authenticated now, or ends."""
        with self._lock:
            self._shared.pop(handle, None)
            if (waiting := self._of_hosts.get(address)) is not None:
                waiting.pop(handle, None)
                if not waiting:
                    del self._of_hosts[address]

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


def _displace_one(waiting: dict[socket.socket, str]) -> None:
    crowd, _ = collections.Counter(waiting.values()).most_common(1)[0]
    oldest = next(handle for handle, address in waiting.items() if address == crowd)
    del waiting[oldest]
    with contextlib.suppress(OSError):  # the other side has ended it already
        oldest.shutdown(socket.SHUT_RDWR)


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
