# SPDX-License-Identifier: Apache-2.0
"""How many handshakes others may make this host do: each takes up to 1 ms of a processor.

Who a connection is from is known only after its handshake; before it there is an
address alone.  So each address at which hosts of the v-node table stand has an
allowance of its own, which others cannot use up, and all other addresses share one.

The time that unauthenticated peers can make this host spend on cryptography does not grow
with their number.
"""

from collections.abc import Callable

from acstor_common.util import token_buckets

OF_HOST = token_buckets.Rate(per_s=4.0, burst=32.0)
"""A host has four connections, and opens them anew after a restart or when they were idle."""
OF_ADDRESS = token_buckets.Rate(per_s=5.0, burst=10.0)
OF_UNAUTHENTICATED = token_buckets.Rate(per_s=50.0, burst=100.0)
"""All together: 5 % of a processor.  They are hosts that come from another address than theirs."""
ADDRESSES = 16384
"""Addresses of which something is remembered, of hosts and of others."""


class HandshakeLimiter:
    """Who may begin one now.

    :param hosts_at: returns how many hosts of the table stand at an address

    >>> handshakes = HandshakeLimiter({"10.0.0.1": 1}.get)
    >>> sum(handshakes.may_begin(f"192.0.2.{n % 250}", 0.0) for n in range(1000))
    100
    >>> handshakes.may_begin("10.0.0.1", 0.0), handshakes.refused
    (True, 900)
    """

    def __init__(self, hosts_at: Callable[[str], int | None]) -> None:
        self.refused = 0
        self._hosts_at = hosts_at
        self._hosts: token_buckets.TokenBuckets[str] = token_buckets.TokenBuckets(
            OF_HOST, ADDRESSES
        )
        self._others: token_buckets.TokenBuckets[str] = token_buckets.TokenBuckets(
            OF_ADDRESS, ADDRESSES
        )
        self._all: token_buckets.TokenBuckets[None] = token_buckets.TokenBuckets(
            OF_UNAUTHENTICATED, 1
        )

    def may_come(self, ip: str, now: float) -> bool:
        """Say whether one from an address might begin now; if not it counts as refused."""
        may = self._is_left(ip, self._hosts_at(ip), now)
        self.refused += not may
        return may

    def may_begin(self, ip: str, now: float) -> bool:
        """Say whether a connection from an address may have its handshake; it counts as begun."""
        hosts = self._hosts_at(ip)
        may = self._is_left(ip, hosts, now)
        if not may:
            self.refused += 1
        elif hosts:
            self._hosts.charge_tokens(ip, 1 / hosts, now)
        else:
            self._others.charge_tokens(ip, 1, now)
            self._all.charge_tokens(None, 1, now)
        return may

    def _is_left(self, ip: str, hosts: int | None, now: float) -> bool:
        if hosts:
            return self._hosts.tokens_left(ip, now) >= 1 / hosts
        return self._all.tokens_left(None, now) >= 1 and self._others.tokens_left(ip, now) >= 1
