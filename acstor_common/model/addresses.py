# SPDX-License-Identifier: Apache-2.0
"""Where agents and services listen: an IP address and a port, in words and out of them."""

import ipaddress
import re
from collections.abc import Iterable

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""RFC 6052."""


def parse(text: str) -> tuple[str, int]:
    """Return the IP address and the port of ``text``.

    >>> parse("10.0.0.1:7201"), parse("[::1]:7201")
    (('10.0.0.1', 7201), ('::1', 7201))

    :raises ValueError: it is not ``ip:port`` or ``[ipv6]:port`` with a port from 1 to 65535
    """
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9.]+)):([0-9]{1,5})", text, re.ASCII)
    try:
        if not match or not 1 <= int(match[3]) <= 65535:
            raise ValueError(text)
        ip = ipaddress.IPv6Address(match[1]) if match[1] else ipaddress.IPv4Address(match[2])
    except ValueError:
        raise ValueError(f"not an address (ip:port is expected): {text[:64]!r}") from None
    return str(ip), int(match[3])


def parse_remote(text: str) -> tuple[str, int]:
    """Return the IP address and the port at which a host is, perhaps of another network.

    :raises ValueError: it is none, or no host can be there (:func:`why_unreachable`)
    """
    ip, port = parse(text)
    if fault := why_unreachable(ip):
        raise ValueError(f"no host is at {text[:64]!r}: it is {fault}")
    return ip, port


def is_loopback(ip: str) -> bool:
    """Say whether an address leads to whoever uses it.

    >>> is_loopback("127.0.0.2"), is_loopback("::ffff:127.0.0.1"), is_loopback("10.0.0.1")
    (True, True, False)
    """
    return _plain(ip).is_loopback


def why_unreachable(ip: str) -> str:
    """Return why no host of another network gets to an address; "" if it may be of one.

    >>> why_unreachable("169.254.169.254"), why_unreachable("::"), why_unreachable("10.0.0.1")
    ('link-local', 'unspecified', '')
    """
    for kind in ("unspecified", "multicast", "link_local"):
        if getattr(_plain(ip), f"is_{kind}"):
            return kind.replace("_", "-")
    return ""


def is_public(ip: str) -> bool:
    """Say whether an address belongs to the public Internet.

    >>> is_public("1.1.1.1"), is_public("10.0.0.1"), is_public("64:ff9b::10.0.0.1")
    (True, False, False)
    """
    found = _plain(ip)
    if isinstance(found, ipaddress.IPv6Address) and (found.is_site_local or found.is_reserved):
        return False
    return found.is_global and not found.is_multicast


def is_within(ip: str, networks: Iterable[Network]) -> bool:
    """Say whether one of ``networks`` contains an address.

    >>> is_within("::ffff:10.0.0.1", [ipaddress.ip_network("10.0.0.0/8")])
    True
    """
    found = _plain(ip)
    return any(found in network for network in networks)


def unmapped(ip: str) -> str:
    """Return an IP address; of one that leads to an IPv4 host, the IPv4 address.

    >>> unmapped("::ffff:10.0.0.1"), unmapped("FD00::1")
    ('10.0.0.1', 'fd00::1')
    """
    return str(_plain(ip))


def _plain(ip: str) -> Address:
    """Return an address; of one that leads to an IPv4 host, the IPv4 address.

    That are IPv4-mapped addresses, NAT64 with its well-known prefix, and 6to4.
    """
    found = ipaddress.ip_address(ip.partition("%")[0])
    if isinstance(found, ipaddress.IPv4Address):
        return found
    if found in _NAT64:
        return ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
    return found.ipv4_mapped or found.sixtofour or found
