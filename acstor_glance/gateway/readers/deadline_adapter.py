# SPDX-License-Identifier: Apache-2.0
"""Connections to web servers that tenants name, with deadlines per read.

Socket timeouts restart with each byte, so a slow server could hold a read for days. At the deadline
the connection is shut down, in whatever phase.

Connections go to public addresses, or to networks that the operator allows. A name is resolved
once, and the checked address is used. The operator's proxies are not checked; they resolve names
themselves.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any
from typing import Self

import requests.adapters
import urllib3.connection
import urllib3.connectionpool
import urllib3.exceptions

from acstor_common.model import addresses

LEAST_S = 0.001


class InternalAddress(Exception):
    """The server has internal addresses only, which are not allowed."""


class ReadDeadline:
    """Context manager: deadline and allowed networks of this thread's read."""

    def __init__(self, timeout_s: float, networks: Sequence[addresses.Network] = ()) -> None:
        self.networks = networks
        self._until_s = time.monotonic() + timeout_s
        self._timer = threading.Timer(timeout_s, self._shut)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self.is_over = False

    def __enter__(self) -> Self:
        _thread_state.bounds = self
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        _thread_state.bounds = None
        with self._lock:
            for copy in self._sockets:
                copy.close()
            self._sockets = []

    @property
    def left_s(self) -> float:
        """Time until the deadline."""
        return max(0.0, self._until_s - time.monotonic())

    def cover_connection(self, connection: socket.socket) -> None:
        """Shut a connection down at the deadline; TimeoutError if it has passed."""
        # A duplicate, since TLS takes the descriptor, and an answer outlives its connection.
        copy = socket.socket(fileno=os.dup(connection.fileno()))
        with self._lock:
            if not self.is_over:
                self._sockets.append(copy)
                return
        copy.close()
        raise TimeoutError("the time of the read is over")

    def _shut(self) -> None:
        with self._lock:
            self.is_over = True
            for copy in self._sockets:
                with contextlib.suppress(OSError):
                    copy.shutdown(socket.SHUT_RDWR)


_thread_state = threading.local()


def _bounds() -> ReadDeadline:
    found: ReadDeadline = _thread_state.bounds
    return found


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


class _DeadlineMixin:
    """Mixin for urllib3's connections."""

    def _new_conn(self: Any) -> socket.socket:
        """Connect to an allowed address, or raise InternalAddress.

        Overrides urllib3's method, as urllib3.contrib.socks does.
        """
        bounds = _bounds()
        failed: Exception | None = None
        try:
            found = socket.getaddrinfo(self._dns_host, self.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise urllib3.exceptions.NewConnectionError(self, "no such name") from error
        for family, kind, protocol, _, address in found:
            if not self.proxy and not is_allowed(str(address[0]), bounds.networks):
                continue
            connection = socket.socket(family, kind, protocol)
            try:
                bounds.cover_connection(connection)
                connection.settimeout(max(LEAST_S, bounds.left_s))
                connection.connect(address)
            except OSError as error:
                failed = error
                connection.close()
                if bounds.is_over:
                    break
            else:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.settimeout(self.timeout)
                return connection
        if failed is None:
            raise InternalAddress
        raise urllib3.exceptions.NewConnectionError(self, type(failed).__name__) from failed

    def request(self: Any, *arguments: Any, **more: Any) -> None:
        """Send a request, with the new deadline for a reused connection."""
        if self.sock is not None:
            _bounds().cover_connection(self.sock)
        super().request(*arguments, **more)  # type: ignore[misc]


class _Connection(_DeadlineMixin, urllib3.connection.HTTPConnection):
    pass


class _TlsConnection(_DeadlineMixin, urllib3.connection.HTTPSConnection):
    pass


class _Pool(urllib3.connectionpool.HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(urllib3.connectionpool.HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


_POOLS = {"http": _Pool, "https": _TlsPool}


class Adapter(requests.adapters.HTTPAdapter):
    """Adapter of requests for connections inside a :class:`ReadDeadline`."""

    def init_poolmanager(self, *arguments: Any, **more: Any) -> None:
        """Create the pool manager."""
        super().init_poolmanager(*arguments, **more)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *arguments: Any, **more: Any) -> Any:
        """Return the pool manager of a proxy."""
        manager = super().proxy_manager_for(*arguments, **more)
        manager.pool_classes_by_scheme = _POOLS
        return manager
