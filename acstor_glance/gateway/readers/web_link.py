# SPDX-License-Identifier: Apache-2.0
"""Connections to web servers that tenants name: each read ends in time, whatever the server does.

Time-outs of sockets begin anew with each byte, so a server that gives one now and then would keep
a read, and its place among those of the store, for days.  When the time of a read is over its
connection is shut, wherever the read is: at one of many addresses, in TLS, in the head or in the
body.  And no connection goes to a link-local address, where clouds have their metadata, whatever
name resolves to it.
"""

import contextlib
import ipaddress
import os
import socket
import threading
import time
from typing import Any
from typing import Self

import requests.adapters
import urllib3.connection
import urllib3.connectionpool
import urllib3.exceptions

LEAST_S = 0.001


class Deadline:
    """Context manager: the time of a read of this thread.

    :param timeout_s: how long it may take
    """

    def __init__(self, timeout_s: float) -> None:
        self._until_s = time.monotonic() + timeout_s
        self._timer = threading.Timer(timeout_s, self._shut)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self.is_over = False

    def __enter__(self) -> Self:
        _own.deadline = self
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        _own.deadline = None
        with self._lock:
            for copy in self._sockets:
                copy.close()
            self._sockets = []

    @property
    def left_s(self) -> float:
        """How much of it is left."""
        return max(0.0, self._until_s - time.monotonic())

    def covers(self, connection: socket.socket) -> None:
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


def _deadline() -> Deadline:
    found: Deadline = _own.deadline
    return found


def is_allowed(address: str) -> bool:
    """Say whether a connection may go to an address."""
    found: Any = ipaddress.ip_address(address.partition("%")[0])
    found = getattr(found, "ipv4_mapped", None) or found
    return not (found.is_link_local or found.is_multicast or found.is_unspecified)


class _Ended:
    """What a connection of urllib3 does differently."""

    def _new_conn(self: Any) -> socket.socket:
        """Connect to one of the server's addresses (urllib3.contrib.socks has such a method)."""
        deadline = _deadline()
        failed: Exception = PermissionError("it has no address that may be asked")
        try:
            found = socket.getaddrinfo(self._dns_host, self.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise urllib3.exceptions.NewConnectionError(self, "no such name") from error
        for family, kind, protocol, _, address in found:
            if not is_allowed(str(address[0])):
                continue
            connection = socket.socket(family, kind, protocol)
            try:
                deadline.covers(connection)
                connection.settimeout(max(LEAST_S, deadline.left_s))
                connection.connect(address)
            except OSError as error:
                failed = error
                connection.close()
                if deadline.is_over:
                    break
            else:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.settimeout(self.timeout)
                return connection
        raise urllib3.exceptions.NewConnectionError(self, type(failed).__name__) from failed

    def request(self: Any, *arguments: Any, **more: Any) -> None:
        """Send a request; a connection that was kept has a new deadline now."""
        if self.sock is not None:
            _deadline().covers(self.sock)
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
    """Lets requests connect as this module does; it is used inside of a :class:`Deadline`."""

    def init_poolmanager(self, *arguments: Any, **more: Any) -> None:
        """Make what has the connections."""
        super().init_poolmanager(*arguments, **more)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *arguments: Any, **more: Any) -> Any:
        """Return what has the connections to a proxy."""
        manager = super().proxy_manager_for(*arguments, **more)
        manager.pool_classes_by_scheme = _POOLS
        return manager
