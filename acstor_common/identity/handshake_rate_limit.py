# SPDX-License-Identifier: Apache-2.0
"""Rate limit of TLS handshakes by address; each takes up to 1 ms of CPU.

Each address of a host in the v-node table has its own bucket, and all other addresses share one:
unauthenticated peers cannot exhaust the CPU or the limits of hosts.
"""

import collections
from collections.abc import Mapping
from typing import Protocol
from typing import TypeVar

from acstor_common.util import token_buckets

K = TypeVar("K")

OF_HOST = token_buckets.Rate(per_s=4.0, burst=32.0)
"""A host has four connections, and reopens them after a restart or when idle."""
OF_ADDRESS = token_buckets.Rate(per_s=5.0, burst=10.0)
OF_UNAUTHENTICATED = token_buckets.Rate(per_s=50.0, burst=100.0)
"""All other addresses together: 5 % of a CPU.  Hosts behind NAT are among them."""
ADDRESSES = 16384  # number of remembered addresses, of hosts and of others


class HostAddresses(Protocol):
    """Knows the addresses of the hosts in the v-node table."""

    def hosts_at(self, ip: str) -> int:
        """Return the number of hosts with an address."""


class HandshakeRateLimit:
    """Token buckets of handshakes by address.

    >>> from acstor_common.ring import hash_ring
    >>> table = hash_ring.Ring(1, (hash_ring.RingHost("h1", "10.0.0.1:7201", 100),))
    >>> handshakes = HandshakeRateLimit(table)
    >>> sum(handshakes.admit_handshake(f"192.0.2.{n % 250}", 0.0) for n in range(1000))
    100
    >>> handshakes.admit_handshake("10.0.0.1", 0.0), handshakes.refused
    (True, 900)
    """

    def __init__(self, hosts: HostAddresses) -> None:
        self.refused = 0
        self._addresses = hosts
        self._hosts: token_buckets.TokenBuckets[str] = token_buckets.TokenBuckets(
            OF_HOST, ADDRESSES
        )
        self._others: token_buckets.TokenBuckets[str] = token_buckets.TokenBuckets(
            OF_ADDRESS, ADDRESSES
        )
        self._all: token_buckets.TokenBuckets[None] = token_buckets.TokenBuckets(
            OF_UNAUTHENTICATED, 1
        )

    def admit_connection(self, ip: str, now: float) -> bool:
        """Return whether a handshake would be allowed; count a refusal."""
        is_admitted = self._has_tokens(ip, self._addresses.hosts_at(ip), now)
        self.refused += not is_admitted
        return is_admitted

    def admit_handshake(self, ip: str, now: float) -> bool:
        """Charge for a handshake and return True, or count a refusal and return False."""
        hosts, is_admitted = self._addresses.hosts_at(ip), self.admit_connection(ip, now)
        if is_admitted and hosts:
            self._hosts.charge_tokens(ip, 1 / hosts, now)
        elif is_admitted:
            self._others.charge_tokens(ip, 1, now)
            self._all.charge_tokens(None, 1, now)
        return is_admitted

    def _has_tokens(self, ip: str, hosts: int, now: float) -> bool:
        if hosts:
            return self._hosts.tokens_left(ip, now) >= 1 / hosts
        return self._all.tokens_left(None, now) >= 1 and self._others.tokens_left(ip, now) >= 1


def oldest_of_busiest_address(waiting: Mapping[K, str]) -> K:
    """Return the oldest connection of the address with the most; ``waiting`` is oldest first."""
    busiest, _ = collections.Counter(waiting.values()).most_common(1)[0]
    return next(one for one, address in waiting.items() if address == busiest)
