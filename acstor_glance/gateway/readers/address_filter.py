# SPDX-License-Identifier: Apache-2.0
"""Connections to web servers that tenants name: only to public or allowed addresses.

A name is resolved once, for check and connection. The operator's proxies are not checked.
"""

import socket
import time
from collections.abc import Sequence
from typing import Any

import urllib3.exceptions

from acstor_common.model import addresses

LEAST_S = 0.001


class InternalAddress(Exception):
    """The server has internal addresses only, which are not allowed."""


def is_allowed(address: str, networks: Sequence[addresses.Network] = ()) -> bool:
    """Return whether connections to an address are allowed."""
    if addresses.is_within(address, networks):
        return True
    return addresses.is_public(address) and not is_own(address)


def is_own(address: str) -> bool:
    """Return whether an address is this host's."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # selects a source address, sends nothing
        except OSError:  # no route
            return False
        return bool(probe.getsockname()[0] == address)


class FilteredConnection:
    """Mixin for urllib3's connections; ``networks`` are allowed internal ones."""

    networks: Sequence[addresses.Network] = ()

    def _new_conn(self: Any) -> socket.socket:
        """Connect within the timeout, or raise InternalAddress; the rest is the TLS handshake's."""
        until_s = time.monotonic() + self.timeout
        failed: Exception | None = None
        try:
            found = socket.getaddrinfo(self._dns_host, self.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise urllib3.exceptions.NewConnectionError(self, "no such name") from error
        for family, kind, protocol, _, address in found:
            if not self.proxy and not is_allowed(str(address[0]), self.networks):
                continue
            connection = socket.socket(family, kind, protocol)
            try:
                _limit(connection, until_s)
                connection.connect(address)
                _limit(connection, until_s)
            except OSError as error:
                failed = error
                connection.close()
                if time.monotonic() >= until_s:
                    break
            else:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return connection
        if failed is None:
            raise InternalAddress
        raise urllib3.exceptions.NewConnectionError(self, type(failed).__name__) from failed


def _limit(connection: socket.socket, until_s: float) -> None:
    connection.settimeout(max(LEAST_S, until_s - time.monotonic()))
