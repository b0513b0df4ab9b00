# SPDX-License-Identifier: Apache-2.0
"""Bounds incoming connections before their Hello, in number and in time.

Each address of hosts in the v-node table has slots of its own; all other addresses share theirs.
If no slot is free, the oldest connection of that address is dropped, or of the address with the
most shared slots. So a flood from one address drops its own connections.
"""

import contextlib
import logging
from collections.abc import Callable
from collections.abc import Iterator

import trio

from acstor_common.identity import handshake_rate_limit
from acstor_common.util import log_limit

LOG = logging.getLogger(__name__)

LOG_INTERVAL_S = 10.0
LOG_LINES = 32  # log lines in LOG_INTERVAL_S, since attackers choose addresses and reasons
SLOTS_PER_HOST = 8
"""For each host in the table at an address: four, and four more while old ones end."""


class UnauthenticatedConnections:
    """Connections before their Hello, at most ``limit`` from addresses without hosts."""

    def __init__(
        self, limit: int, time_s: float, hosts: handshake_rate_limit.HostAddresses
    ) -> None:
        self.dropped = 0  # connections that failed before their Hello
        self.handshakes = handshake_rate_limit.HandshakeRateLimit(hosts)
        self._limit, self._time_s, self._hosts = limit, time_s, hosts
        self._waiting: dict[trio.CancelScope, str] = {}  # oldest first
        self._of_hosts: dict[str, dict[trio.CancelScope, str]] = {}  # by address, oldest first
        self._drop_log = log_limit.LogLimit(LOG_INTERVAL_S)
        self._rate_log = log_limit.LogLimit(LOG_INTERVAL_S)
        self._line_log = log_limit.LogLimit(LOG_INTERVAL_S, LOG_LINES)

    def __len__(self) -> int:
        return len(self._waiting) + sum(map(len, self._of_hosts.values()))

    @contextlib.contextmanager
    def count_unauthenticated(self, ip: str) -> Iterator[None]:
        """Count a connection during a block; raise TooSlowError if it is dropped."""
        is_dropped = True
        try:
            with trio.fail_after(self._time_s) as scope:
                waiting = self._take_slot(ip)
                waiting[scope] = ip
                try:
                    yield
                finally:
                    waiting.pop(scope, None)
                    if not self._of_hosts.get(ip, True):
                        del self._of_hosts[ip]
            is_dropped = False
        finally:
            self.dropped += is_dropped

    def _take_slot(self, ip: str) -> dict[trio.CancelScope, str]:
        """Return the connections that share slots with an address, at least one slot free."""
        hosts = self._hosts.hosts_at(ip)
        if hosts:
            waiting, limit = self._of_hosts.setdefault(ip, {}), SLOTS_PER_HOST * hosts
        else:
            waiting, limit = self._waiting, self._limit
        while len(waiting) >= limit:
            oldest = handshake_rate_limit.oldest_of_busiest_address(waiting)
            del waiting[oldest]
            oldest.cancel()
        return waiting

    def admit_connection(self, ip: str) -> bool:
        """Return whether to accept a connection from an address; count it if not."""
        return self._admit(self.handshakes.admit_connection, ip)

    def admit_handshake(self, ip: str) -> bool:
        """Return whether an address may start a handshake; count it if not."""
        return self._admit(self.handshakes.admit_handshake, ip)

    def _admit(self, rule: Callable[[str, float], bool], ip: str) -> bool:
        now = trio.current_time()
        is_admitted = rule(ip, now)
        if not is_admitted and (suppressed := self._rate_log.take_line(None, now)) is not None:
            LOG.warning(
                "Too many handshakes: one from %s is refused (and %d before it)",
                ip,
                suppressed,
            )
        return is_admitted

    def log_drops(self, ip: str, peer: str, why: str) -> None:
        """Log a dropped connection, rate-limited for each address and reason."""
        now = trio.current_time()
        suppressed = self._drop_log.take_line((ip, why), now)
        if suppressed is None or (unlogged := self._line_log.take_line(None, now)) is None:
            return
        if unlogged:
            LOG.warning("%d more connections were dropped for other reasons", unlogged)
        more = f" (and {suppressed} more like it)" if suppressed else ""
        LOG.warning("Connection from %s dropped: %s%s", peer, why, more)
