# SPDX-License-Identifier: Apache-2.0
"""Connections to web servers that tenants name: each read ends in time, whatever the server does.

Time-outs of sockets begin anew with each byte, so a server that gives one now and then would keep
a read, and its place among those of the store, for days.  When the time of a read is over its
connection is shut, wherever the read is: at one of many addresses, in TLS, in the head or in the
body.

A connection goes to a public address, or to one of the networks that the operator allows: a name is
resolved once, and the address that was checked is the one that is connected to.  Proxies are the
operator's and are not checked; a proxy resolves the names itself.
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
    """A server has no address but internal ones, to which the gateway does not connect."""


class ReadDeadline:
    """Context manager: how long a read of this thread may take, and where it may connect to.

    :param timeout_s: how long it may take
    :param networks: the internal networks that it may connect to
    """

    def __init__(self, timeout_s: float, networks: Sequence[addresses.Network] = ()) -> None:
        self.networks = networks
        self._until_s = time.monotonic() + timeout_s
        self._timer = threading.Timer(timeout_s, self._shut)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self.is_over = False

    def __enter__(self) -> Self:
        _own.bounds = self
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        _own.bounds = None
        with self._lock:
            for copy in self._sockets:
                copy.close()
            self._sockets = []

    @property
    def left_s(self) -> float:
        """How much of it is left."""
        return max(0.0, self._until_s - time.monotonic())

    def cover_connection(self, connection: socket.socket) -> None:
        """Let a connection be shut when the time is over.

        :raises TimeoutError: it is
        """
        # A copy, since TLS takes the descriptor away, and an answer outlives its connection.
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


_own = threading.local()


def _bounds() -> ReadDeadline:
    found: ReadDeadline = _own.bounds
    return found


def is_allowed(address: str, networks: Sequence[addresses.Network] = ()) -> bool:
    """Say whether a connection may go to an address."""
    if addresses.is_within(address, networks):
        return True
    return addresses.is_public(address) and not is_own(address)


def is_own(address: str) -> bool:
    """Say whether an address is one of this host's."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # chooses a source address and sends nothing
        except OSError:  # there is no route
            return False
        return bool(probe.getsockname()[0] == address)


class _Ended:
    """What a connection of urllib3 does differently."""

    def _new_conn(self: Any) -> socket.socket:
        """Connect to one of the server's addresses (urllib3.contrib.socks has such a method).

        :raises InternalAddress: none of them may be connected to
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
        """Send a request; a connection that was kept has a new deadline now."""
        if self.sock is not None:
            _bounds().cover_connection(self.sock)
        super().request(*arguments, **more)  # type: ignore[misc]


class _Connection(_Ended, urllib3.connection.HTTPConnection):
    pass


class _TlsConnection(_Ended, urllib3.connection.HTTPSConnection):
    pass


class _Pool(urllib3.connectionpool.HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(urllib3.connectionpool.HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


_POOLS = {"http": _Pool, "https": _TlsPool}


class Adapter(requests.adapters.HTTPAdapter):
    """Lets requests connect as this module does; it is used inside of a :class:`ReadDeadline`."""

    def init_poolmanager(self, *arguments: Any, **more: Any) -> None:
        """Make what has the connections."""
        super().init_poolmanager(*arguments, **more)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *arguments: Any, **more: Any) -> Any:
        """Return what has the connections to a proxy."""
        manager = super().proxy_manager_for(*arguments, **more)
        manager.pool_classes_by_scheme = _POOLS
        return manager
