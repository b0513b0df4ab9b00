# SPDX-License-Identifier: Apache-2.0
"""Which host proved to be at which address, and which addresses are to be connected to next.

What a host says of its address is a claim: a table that named it would have every agent connect
there.  So the service connects first, and the certificate shown there says who it is.
"""

from collections.abc import Container
from collections.abc import Iterable
from typing import NamedTuple

from acstor_common.model import ids
from acstor_decision.core.membership import address_book

AT_A_TIME = 64
"""Addresses that are asked for in a round."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0
"""Between attempts at one address, twice as long each time."""


class _Attempt(NamedTuple):
    """The last attempt at an address.

    :param failures: in a row, it included
    :param found: who is there; "": nobody proved anything
    """

    failures: int
    at_s: float
    found: str


class AddressProofs:
    """Proofs and attempts."""

    def __init__(self) -> None:
        self._proven: dict[ids.HostId, address_book.Address] = {}
        self._attempts: dict[address_book.Address, _Attempt] = {}

    def is_proven(self, host: ids.HostId, address: address_book.Address) -> bool:
        """Say whether a host proved to be at an address, and no other one since."""
        return self._proven.get(host) == address

    def record_proof(self, host: ids.HostId, address: address_book.Address) -> None:
        """Note that a host is at an address, and nobody else."""
        if self._proven.get(host) != address:
            self._proven = {h: at for h, at in self._proven.items() if at != address}
            self._proven[host] = address

    def next_addresses(
        self, wanted: Iterable[address_book.Address], now_s: float
    ) -> list[address_book.Address]:
        """Return which of the addresses to connect to now: first those that were not tried yet."""
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
        pause_s = FIRST_PAUSE_S * 2.0 ** min(max(0, last.failures - 1), 10)
        return now_s - last.at_s >= min(LONGEST_PAUSE_S, pause_s)

    def note_attempt(
        self, address: address_book.Address, found: str, now_s: float, *, has_failed: bool
    ) -> None:
        """Note who proved to be at an address.

        :param has_failed: nobody did who says to be there
        """
        last = self._attempts.get(address)
        failures = (last.failures if last else 0) + 1 if has_failed else 0
        self._attempts[address] = _Attempt(failures, now_s, found)

    def was_missed(self, host: ids.HostId, address: address_book.Address, since_s: float) -> bool:
        """Say whether the last attempt at an address was after a time, and a host was not there."""
        last = self._attempts.get(address)
        return last is not None and last.at_s >= since_s and last.found != host

    def retain_hosts(
        self, hosts: Container[ids.HostId], claimed: Container[address_book.Address]
    ) -> None:
        """Forget what is of no other hosts and addresses."""
        self._proven = {host: at for host, at in self._proven.items() if host in hosts}
        self._attempts = {at: one for at, one in self._attempts.items() if at in claimed}
