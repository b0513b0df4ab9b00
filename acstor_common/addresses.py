# SPDX-License-Identifier: Apache-2.0
"""Where agents and services listen: an IP address and a port, in words and out of them."""

import ipaddress
import re


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


def parse_of_host(text: str) -> tuple[str, int]:
    """Return the IP address and the port at which a host is, perhaps of another network.

    :raises ValueError: it is none, or no host can be there (:func:`fault_of`)
    """
    ip, port = parse(text)
    if fault := fault_of(ip):
        raise ValueError(f"no host is at {text[:64]!r}: it is {fault}")
    return ip, port


def is_loopback(ip: str) -> bool:
    """Say whether an address leads to whoever uses it.

    >>> is_loopback("127.0.0.2"), is_loopback("::ffff:127.0.0.1"), is_loopback("10.0.0.1")
    (True, True, False)
    """
    return _plain(ip).is_loopback


def fault_of(ip: str) -> str:
    """Return why no host of another network gets to an address; "" if it may be of one.

    >>> fault_of("169.254.169.254"), fault_of("::"), fault_of("10.0.0.1")
    ('link-local', 'unspecified', '')
    """
    for kind in ("unspecified", "multicast", "link_local"):
        if getattr(_plain(ip), f"is_{kind}"):
            return kind.replace("_", "-")
    return ""


def _plain(ip: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return an address, without the IPv6 around one of IPv4."""
    found = ipaddress.ip_address(ip)
    return getattr(found, "ipv4_mapped", None) or found
