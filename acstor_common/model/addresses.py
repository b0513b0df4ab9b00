# SPDX-License-Identifier: Apache-2.0
"""IP addresses and ports of agents and services: parsing and checks."""

import ipaddress
import re
from collections.abc import Iterable

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # well-known prefix of NAT64 (RFC 6052)


def parse(text: str) -> tuple[str, int]:
    """Parse ``ip:port`` or ``[ipv6]:port`` (port 1 to 65535), or raise ValueError.

    >>> parse("10.0.0.1:7201"), parse("[::1]:7201")
    (('10.0.0.1', 7201), ('::1', 7201))
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
    """Parse another host's address; ValueError if it is malformed or not reachable."""
    ip, port = parse(text)
    if fault := why_unreachable(ip):
        raise ValueError(f"other hosts cannot reach {text[:64]!r}: it is {fault}")
    return ip, port


def is_loopback(ip: str) -> bool:
    """Return whether an address is a loopback address.

    >>> is_loopback("127.0.0.2"), is_loopback("::ffff:127.0.0.1"), is_loopback("10.0.0.1")
    (True, True, False)
    """
    return _plain(ip).is_loopback


def why_unreachable(ip: str) -> str:
    """Return why other networks cannot reach an address; "" if they can.

    >>> why_unreachable("169.254.169.254"), why_unreachable("::"), why_unreachable("10.0.0.1")
    ('link-local', 'unspecified', '')
    """
    for kind in ("unspecified", "multicast", "link_local"):
        if getattr(_plain(ip), f"is_{kind}"):
            return kind.replace("_", "-")
    return ""


def is_public(ip: str) -> bool:
    """Return whether an address belongs to the public Internet.

    >>> is_public("1.1.1.1"), is_public("10.0.0.1"), is_public("64:ff9b::10.0.0.1")
    (True, False, False)
    """
    found = _plain(ip)
    if isinstance(found, ipaddress.IPv6Address) and (found.is_site_local or found.is_reserved):
        return False
    return found.is_global and not found.is_multicast


def is_within(ip: str, networks: Iterable[Network]) -> bool:
    """Return whether one of ``networks`` contains an address.

    >>> is_within("::ffff:10.0.0.1", [ipaddress.ip_network("10.0.0.0/8")])
    True
    """
    found = _plain(ip)
    return any(found in network for network in networks)


def unmapped(ip: str) -> str:
    """Return the address in canonical form, an embedded IPv4 address as IPv4.

    >>> unmapped("::ffff:10.0.0.1"), unmapped("FD00::1")
    ('10.0.0.1', 'fd00::1')
    """
    return str(_plain(ip))


def _plain(ip: str) -> Address:
    """Parse an address; unwrap IPv4-mapped, NAT64 and 6to4 addresses."""
    found = ipaddress.ip_address(ip.partition("%")[0])
    if isinstance(found, ipaddress.IPv4Address):
        return found
    if found in _NAT64:
        return ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
    return found.ipv4_mapped or found.sixtofour or found
