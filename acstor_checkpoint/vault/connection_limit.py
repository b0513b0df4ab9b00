# SPDX-License-Identifier: Apache-2.0
"""Connections that a vault has at a time.

A connection is unauthenticated until its TLS handshake has shown which host it is from.
Unauthenticated connections have few places, and never keep a host out: when the places are taken,
a new connection displaces the oldest one of the address that has most of them.  Each address at
which hosts of the v-node table stand has places of its own, which other addresses cannot take.

Authenticated hosts have other places, fairly shared: when they are taken, a new connection
displaces one that has been idle for IDLE_S, or else one of the host that has most.
"""

import collections
import contextlib
import itertools
import math
import socket
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Final
from typing import NamedTuple

from acstor_common.model import ids

UNAUTHENTICATED: Final = 64
"""Of all addresses at which no host stands."""
UNAUTHENTICATED_OF_HOST: Final = 8
"""Of each host of the table, at its address."""
CONNECTIONS: Final = 256
"""Each is a thread, which holds a chunk at a time: 16 MiB for all, 1 GiB in chunks of 4 MiB."""
CONNECTIONS_OF_HOST: Final = 16
"""Its agent has 8, its checkpoint daemon one for each disk and one to collect garbage."""

IDLE_S: Final = 5.0
"""A new connection has its first request within less."""
_BUSY: Final = math.inf


class ConnectionLimit:
    """Counts connections and displaces some for new ones; may be used by many threads.

    :param hosts_at: returns how many hosts of the v-node table stand at an address
    :param clock: monotonic
    """

    def __init__(
        self,
        hosts_at: Callable[[str], int | None] = lambda ip: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._hosts_at = hosts_at
        self._shared: dict[socket.socket, str] = {}  # the oldest first
        self._of_hosts: dict[str, dict[socket.socket, str]] = {}  # by address, in the same order
        self._held: dict[socket.socket, _Held] = {}  # the one that changed last is the last

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

    @property
    def hosts(self) -> int:
        """Return how many connections are authenticated."""
        return len(self._held)

    @contextlib.contextmanager
    def admit_host(self, handle: socket.socket, host: ids.HostId) -> Iterator[bool]:
        """Have a place for a connection of a host, idle at first; False if there is none.

        :param handle: see :meth:`add`; it stays open until the block ends
        """
        with self._lock:
            may_stay = self._make_room(host)
            if may_stay:
                self._held[handle] = _Held(host, self._clock())
        try:
            yield may_stay
        finally:
            with self._lock:
                self._held.pop(handle, None)

    @contextlib.contextmanager
    def mark_busy(self, handle: socket.socket) -> Iterator[None]:
        """Let a connection not count as idle in the block: its request is being answered."""
        self._mark(handle, _BUSY)
        try:
            yield
        finally:
            self._mark(handle, self._clock())

    def end_all(self) -> None:
        """End all connections."""
        with self._lock:
            for handle in [*self._shared, *self._held, *itertools.chain(*self._of_hosts.values())]:
                _end(handle)

    def _mark(self, handle: socket.socket, idle_since_s: float) -> None:
        with self._lock:
            if (held := self._held.pop(handle, None)) is not None:  # else it was displaced
                self._held[handle] = held._replace(idle_since_s=idle_since_s)

    def _make_room(self, host: ids.HostId) -> bool:
        """Displace a connection if all places are taken; return whether there is a place."""
        counts = collections.Counter(held.host for held in self._held.values())
        is_own = counts[host] >= CONNECTIONS_OF_HOST
        if not is_own and len(self._held) < CONNECTIONS:
            return True
        long_s = self._clock() - IDLE_S

        def may_go(held: _Held) -> bool:
            if is_own:
                return held.host == host and held.is_idle
            # A busy one goes only if its host has more than the new one's even then.
            return counts[held.host] > counts[host] + (not held.is_idle)

        def rank(handle: socket.socket) -> tuple[bool, int, bool]:
            held = self._held[handle]
            return held.idle_since_s <= long_s, counts[held.host], held.is_idle

        rivals = [handle for handle, held in self._held.items() if may_go(held)]
        if not rivals:
            return False
        chosen = max(rivals, key=rank)
        del self._held[chosen]
        _end(chosen)
        return True


class _Held(NamedTuple):
    host: ids.HostId
    idle_since_s: float

    @property
    def is_idle(self) -> bool:
        return self.idle_since_s < _BUSY


def _displace_one(waiting: dict[socket.socket, str]) -> None:
    crowd, _ = collections.Counter(waiting.values()).most_common(1)[0]
    oldest = next(handle for handle, address in waiting.items() if address == crowd)
    del waiting[oldest]
    _end(oldest)


def _end(handle: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other side has ended it already
        handle.shutdown(socket.SHUT_RDWR)
