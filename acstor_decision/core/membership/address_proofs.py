# SPDX-License-Identifier: Apache-2.0
"""Records which host proved which address, before a table sends agents there."""

from collections.abc import Collection
from collections.abc import Container
from collections.abc import Iterable
from typing import NamedTuple

from acstor_common.model import ids
from acstor_common.util import backoff
from acstor_decision.core.membership import address_book

AT_A_TIME = 64  # limit of addresses in flight
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0
"""Pauses between attempts at one address; each is twice as long."""


class _Attempt(NamedTuple):
    """The last attempt at an address; ``found`` is the host that authenticated, or ""."""

    failures: int
    at_s: float
    found: str


class AddressProofs:
    """Proven addresses, hosts that never proved one, and the last attempts."""

    def __init__(self) -> None:
        self._proven: dict[ids.HostId, address_book.Address] = {}
        self._unproven: dict[ids.HostId, None] = {}  # the longest known first
        self._attempts: dict[address_book.Address, _Attempt] = {}
        self._tried_s: dict[ids.HostId, float] = {}  # last attempt for each host

    def is_proven(self, host: ids.HostId, address: address_book.Address) -> bool:
        """Return whether a host was the last to prove that it is at an address."""
        return self._proven.get(host) == address

    def record_proof(self, host: ids.HostId, address: address_book.Address) -> None:
        """Record that a host, and no other, is at an address."""
        if self._proven.get(host) != address:
            self._proven = {h: at for h, at in self._proven.items() if at != address}
            self._proven[host] = address
        self._unproven.pop(host, None)

    def record_unproven(self, host: ids.HostId) -> None:
        """Record that a host must prove its address, unless it has proven one."""
        if host not in self._proven:
            self._unproven.setdefault(host)

    def longest_unproven(self) -> ids.HostId | None:
        """Return the longest-known host that never proved an address."""
        return next(iter(self._unproven), None)

    def take_addresses(
        self,
        claims: Iterable[tuple[ids.HostId, address_book.Address]],
        in_flight: Collection[address_book.Address],
        now_s: float,
    ) -> list[address_book.Address]:
        """Return the addresses to connect to now, and record an attempt for their hosts.

        Hosts without an attempt come first, then those with the oldest, at whatever address.
        """
        due = [
            (host, address)
            for host, address in claims
            if address not in in_flight and self._may_try(address, now_s)
        ]
        due.sort(key=lambda claim: self._tried_s.get(claim[0], float("-inf")))
        free = max(0, AT_A_TIME - len(in_flight))
        taken = list(dict.fromkeys(address for _, address in due))[:free]
        chosen = frozenset(taken)
        self._tried_s.update((host, now_s) for host, address in due if address in chosen)
        return taken

    def _may_try(self, address: address_book.Address, now_s: float) -> bool:
        last = self._attempts.get(address)
        if last is None:
            return True
        pause_s = backoff.pause_s(max(0, last.failures - 1), FIRST_PAUSE_S, LONGEST_PAUSE_S)
        return now_s - last.at_s >= pause_s

    def record_attempt(
        self, address: address_book.Address, found: str, now_s: float, *, has_failed: bool
    ) -> None:
        """Record the host found at an address; ``has_failed``: it does not claim the address."""
        last = self._attempts.get(address)
        failures = (last.failures if last else 0) + 1 if has_failed else 0
        self._attempts[address] = _Attempt(failures, now_s, found)

    def was_missed(self, host: ids.HostId, address: address_book.Address, since_s: float) -> bool:
        """Return whether an attempt after a time did not find a host at its address."""
        last = self._attempts.get(address)
        return last is not None and last.at_s >= since_s and last.found != host

    def remove_host(self, host: ids.HostId) -> None:
        """Remove a host; the time of its last attempt stays, so it is not first if it returns."""
        self._proven.pop(host, None)
        self._unproven.pop(host, None)

    def forget_attempts(
        self,
        hosts: Container[ids.HostId],
        claimed: Container[address_book.Address],
        now_s: float,
    ) -> None:
        """Forget attempts at other addresses than these, and old ones for other hosts."""
        self._attempts = {at: attempt for at, attempt in self._attempts.items() if at in claimed}
        since_s = now_s - LONGEST_PAUSE_S
        self._tried_s = {
            host: at_s for host, at_s in self._tried_s.items() if host in hosts or at_s >= since_s
        }
