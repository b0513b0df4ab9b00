# SPDX-License-Identifier: Apache-2.0
"""Records which host proved which address, before a table sends agents there."""

from collections.abc import Container
from collections.abc import Iterable
from typing import NamedTuple

from acstor_common.model import ids
from acstor_common.util import backoff
from acstor_decision.core.membership import address_book

AT_A_TIME = 64  # addresses verified in one round
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0
"""Pauses between attempts at one address; each is twice as long."""


class _Attempt(NamedTuple):
    """The last attempt at an address; ``found`` is the host that authenticated, or ""."""

    failures: int
    at_s: float
    found: str


class AddressProofs:
    """Proven addresses and the last attempts."""

    def __init__(self) -> None:
        self._proven: dict[ids.HostId, address_book.Address] = {}
        self._attempts: dict[address_book.Address, _Attempt] = {}

    def is_proven(self, host: ids.HostId, address: address_book.Address) -> bool:
        """Return whether a host was the last to prove that it is at an address."""
        return self._proven.get(host) == address

    def record_proof(self, host: ids.HostId, address: address_book.Address) -> None:
        """Record that a host, and no other, is at an address."""
        if self._proven.get(host) != address:
            self._proven = {h: at for h, at in self._proven.items() if at != address}
            self._proven[host] = address

    def next_addresses(
        self, wanted: Iterable[address_book.Address], now_s: float
    ) -> list[address_book.Address]:
        """Return the addresses to connect to now, untried ones first."""
        due = [address for address in dict.fromkeys(wanted) if self._may_try(address, now_s)]
        due.sort(key=lambda address: self._last_s(address))
        return due[:AT_A_TIME]

    def _last_s(self, address: address_book.Address) -> float:
        found = self._attempts.get(address)
        return found.at_s if found else float("-inf")

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

    def retain_hosts(
        self, hosts: Container[ids.HostId], claimed: Container[address_book.Address]
    ) -> None:
        """Forget other hosts and addresses than these."""
        self._proven = {host: at for host, at in self._proven.items() if host in hosts}
        self._attempts = {at: attempt for at, attempt in self._attempts.items() if at in claimed}
