# SPDX-License-Identifier: Apache-2.0
"""Limits of concurrent connections to a vault.

Unauthenticated connections, before the end of their TLS handshake, have few slots; if these are
taken, a new one closes the oldest of the address with the most.  Each address of hosts in the
v-node table has its own slots.  Authenticated hosts share other slots fairly: without a free one, a
new connection closes one that has been idle for IDLE_S, or else one of the host with the most.
"""

import collections
import contextlib
import itertools
import math
import socket
import threading
import time
from collections.abc import Iterator
from typing import Final
from typing import NamedTuple

from acstor_common.identity import handshake_rate_limit
from acstor_common.model import clocks
from acstor_common.model import ids

UNAUTHENTICATED: Final = 64  # of all addresses without a host
UNAUTHENTICATED_OF_HOST: Final = 8  # for each host of the table, at its address
CONNECTIONS: Final = 256
"""Each has a thread and a chunk in memory: 16 MiB in all, 1 GiB for 4 MiB chunks."""
CONNECTIONS_OF_HOST: Final = 16
"""Of these the agent uses 8, the daemon one per disk and one for deletion."""

IDLE_S: Final = 5.0  # a new connection sends its first request sooner
_BUSY: Final = math.inf


class ConnectionLimit:
    """Counts connections, and closes some for new ones; thread-safe."""

    def __init__(
        self,
        hosts: handshake_rate_limit.HostAddresses,
        clock: clocks.Clock = time,
    ) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._addresses = hosts
        self._shared: dict[socket.socket, str] = {}  # the oldest first
        self._of_hosts: dict[str, dict[socket.socket, str]] = {}  # by address, oldest first
        self._held: dict[socket.socket, _HeldConnection] = {}  # least recently changed first

    def add(self, handle: socket.socket, address: str) -> None:
        """Take a slot for an unauthenticated connection; may close another one.

        :param handle: a duplicate descriptor, open until :meth:`remove`
        """
        hosts = self._addresses.hosts_at(address)
        with self._lock:
            if hosts:
                waiting = self._of_hosts.setdefault(address, {})
                limit = UNAUTHENTICATED_OF_HOST * hosts
            else:
                waiting, limit = self._shared, UNAUTHENTICATED
            if len(waiting) >= limit:
                oldest = handshake_rate_limit.oldest_of_busiest_address(waiting)
                del waiting[oldest]
                _end(oldest)
            waiting[handle] = address

    def remove(self, handle: socket.socket, address: str) -> None:
        """Release the slot of a connection that is authenticated or closed."""
        with self._lock:
            self._shared.pop(handle, None)
            if (waiting := self._of_hosts.get(address)) is not None:
                waiting.pop(handle, None)
                if not waiting:
                    del self._of_hosts[address]

    @property
    def authenticated_count(self) -> int:
        """Number of authenticated connections."""
        return len(self._held)

    @contextlib.contextmanager
    def admit_host(self, handle: socket.socket, host: ids.HostId) -> Iterator[bool]:
        """Hold a slot for a host's connection; yield False if there is none."""
        with self._lock:
            may_stay = self._make_room(host)
            if may_stay:
                self._held[handle] = _HeldConnection(host, self._clock.monotonic())
        try:
            yield may_stay
        finally:
            with self._lock:
                self._held.pop(handle, None)

    @contextlib.contextmanager
    def mark_busy(self, handle: socket.socket) -> Iterator[None]:
        """Mark a connection as busy during the block."""
        self._mark(handle, _BUSY)
        try:
            yield
        finally:
            self._mark(handle, self._clock.monotonic())

    def end_all(self) -> None:
        """Close all connections."""
        with self._lock:
            for handle in [*self._shared, *self._held, *itertools.chain(*self._of_hosts.values())]:
                _end(handle)

    def _mark(self, handle: socket.socket, idle_since_s: float) -> None:
        with self._lock:
            if (held := self._held.pop(handle, None)) is not None:  # else closed by another
                self._held[handle] = held._replace(idle_since_s=idle_since_s)

    def _make_room(self, host: ids.HostId) -> bool:
        counts = collections.Counter(held.host for held in self._held.values())
        is_own = counts[host] >= CONNECTIONS_OF_HOST
        if not is_own and len(self._held) < CONNECTIONS:
            return True
        long_s = self._clock.monotonic() - IDLE_S

        def may_go(held: _HeldConnection) -> bool:
            if is_own:
                return held.host == host and held.is_idle
            # Close a busy one only if its host still has more than the new one's.
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


class _HeldConnection(NamedTuple):
    host: ids.HostId
    idle_since_s: float

    @property
    def is_idle(self) -> bool:
        return self.idle_since_s < _BUSY


def _end(handle: socket.socket) -> None:
    with contextlib.suppress(OSError):  # closed by the peer
        handle.shutdown(socket.SHUT_RDWR)
