# SPDX-License-Identifier: Apache-2.0
"""Maps hosts to addresses, and counts hosts at each IP address."""

import collections
import functools
from typing import NamedTuple

from acstor_common.model import addresses
from acstor_common.model import ids
from acstor_common.ring import hash_ring

_cached = functools.lru_cache(2 * hash_ring.MAX_HOSTS)
_is_loopback = _cached(addresses.is_loopback)


class Address(NamedTuple):
    """Address where an agent listens, in normal form."""

    ip: str
    port: int


@_cached
def parse(text: str) -> Address:
    """Return an address in normal form; IPv4-mapped ones become IPv4.

    >>> parse("10.0.0.1:07201") == parse("[::ffff:10.0.0.1]:7201")
    True
    """
    ip, port = addresses.parse(text)
    return Address(addresses.unmapped(ip), port)


class AddressBook:
    """One host at each address, one address of each host."""

    def __init__(self) -> None:
        self._hosts: dict[Address, ids.HostId] = {}
        self._at: dict[ids.HostId, Address] = {}
        self._at_ip: collections.Counter[str] = collections.Counter()

    def __len__(self) -> int:
        return len(self._hosts)

    def host_at(self, address: Address) -> ids.HostId | None:
        """Return the host at an address."""
        return self._hosts.get(address)

    def address_of(self, host: ids.HostId) -> Address | None:
        """Return the address of a host; None if it has none or another host took it."""
        return self._at.get(host)

    def others_at(self, ip: str, host: ids.HostId) -> int:
        """Return how many other hosts are at an IP address."""
        own = self._at.get(host)
        return self._at_ip[ip] - (own is not None and own.ip == ip)

    def are_others_in_network(self, host: ids.HostId) -> bool:
        """Return whether another host has an address that is not a loopback address."""
        return any(not _is_loopback(ip) and self.others_at(ip, host) > 0 for ip in self._at_ip)

    def set_address(self, host: ids.HostId, address: Address) -> None:
        """Move a host to an address, and remove another host from it."""
        if self._at.get(host) == address:
            return
        self.remove(host)
        if (former := self._hosts.get(address)) is not None:
            self.remove(former)
        self._hosts[address], self._at[host] = host, address
        self._at_ip[address.ip] += 1

    def remove(self, host: ids.HostId) -> None:
        """Remove a host's address."""
        address = self._at.pop(host, None)
        if address is None:
            return
        del self._hosts[address]
        self._at_ip[address.ip] -= 1
        if not self._at_ip[address.ip]:
            del self._at_ip[address.ip]
