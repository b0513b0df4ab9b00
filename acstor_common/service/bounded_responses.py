# SPDX-License-Identifier: Apache-2.0
"""Bounds size, depth and duration of the responses that a session of requests reads.

requests and keystoneauth read a whole body into memory, and each byte restarts their timeouts, also
in the status line and headers.  http.client bounds the size of headers.
"""

import contextvars
import functools
import http.client
import io
import math
import socket
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import Final

import requests
import urllib3
from keystoneauth1 import exceptions
from keystoneauth1 import session as keystone_session

from acstor_common.model import addresses

MAX_BYTES: Final = 4 << 20  # of a body; a token response contains the service catalog
MAX_LIST_BYTES: Final = 16 << 20  # of a body with a page of 1,000 servers or images
WITHIN_S: Final = 120.0
"""From the connection to the last byte of the body; after an upload, from its end."""
STREAM_BYTES_PER_S: Final = 64 << 10
"""Least rate of streamed image data, which may be WITHIN_S behind it."""
KEEPALIVE_S: Final = 20
KEEPALIVES: Final = 3  # TCP keepalive, which detects a dead server while it has much to do
_IMAGE_DATA: Final = "application/octet-stream"
_SOCKET_OPTIONS: Final = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVES),
]


def bound(
    session: keystone_session.Session, max_bytes: int = MAX_BYTES, within_s: float = WITHIN_S
) -> None:
    """Make a keystoneauth session fail on larger or slower responses; see :class:`Adapter`."""
    _mount(session.session, Adapter(max_bytes, within_s))


def bound_requests(
    session: requests.Session, max_bytes: int = MAX_BYTES, within_s: float = WITHIN_S
) -> None:
    """Make a session of requests fail on larger or slower responses, also of image data."""
    _mount(session, Adapter(max_bytes, within_s, streams_images=False))


def _mount(session: requests.Session, adapter: "Adapter") -> None:
    for scheme in ("http://", "https://"):
        session.mount(scheme, adapter)


class _Pace:
    """Limits of a response: longest silence, and least rate."""

    def __init__(self, silence_s: float | None) -> None:
        self.silence_s = math.inf if silence_s is None else silence_s
        self.bytes_per_s = math.inf


_PACE: contextvars.ContextVar[_Pace] = contextvars.ContextVar("pace")
"""Of the response that this thread requests; urllib3 passes nothing through to http.client."""


class Adapter(keystone_session.TCPKeepAliveAdapter):
    """Fails on larger, slower or deeper responses, as on a lost connection.

    Image data that the caller streams has any size, and a least rate instead of a deadline.  A
    timeout (connect, read) bounds the wait for the answer to an upload; a urllib3.Timeout's shorter
    total is the deadline of a request without an upload.
    """

    def __init__(
        self,
        max_bytes: int,
        within_s: float,
        connection_class: type = object,
        *,
        streams_images: bool = True,
    ) -> None:
        self._connection_class = connection_class  # first: the next call needs it
        super().__init__()
        self._max_bytes, self._within_s = max_bytes, within_s
        self._streams_images = streams_images

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Create the pool manager."""
        super().init_poolmanager(*args, **{"socket_options": _SOCKET_OPTIONS, **kwargs})
        _bound_reads(self.poolmanager, self._connection_class)

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        """Return the pool manager of a proxy."""
        return _bound_reads(super().proxy_manager_for(*args, **kwargs), self._connection_class)

    def send(  # type: ignore[override]
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: float | tuple[float, float] | urllib3.Timeout | None = None,
        **kwargs: Any,
    ) -> requests.Response:
        """Send a request; return the response, with its body unread if ``stream``."""
        within_s = self._within_s
        if isinstance(timeout, urllib3.Timeout):
            if isinstance(timeout.total, int | float):
                within_s = min(within_s, timeout.total)
            timeout = None
        connect_s, silence_s = timeout if isinstance(timeout, tuple) else (timeout, timeout)
        upload_s = silence_s if isinstance(timeout, tuple) else within_s
        pace = _Pace(silence_s)
        if isinstance(request.body, str | bytes | None):
            limits = urllib3.Timeout(total=within_s, connect=connect_s)
        else:  # an upload has no deadline; its response has the socket's timeout
            limits = urllib3.Timeout(connect=connect_s, read=upload_s)
        token = _PACE.set(pace)
        try:
            response = super().send(request, stream, limits, **kwargs)  # type: ignore[arg-type]
        finally:
            _PACE.reset(token)
        is_image = response.headers.get("Content-Type") == _IMAGE_DATA
        if self._streams_images and stream and response.ok and is_image:
            pace.bytes_per_s = STREAM_BYTES_PER_S
        else:
            response.raw = _Body(response.raw, self._max_bytes)
        response.json = functools.partial(_decode, response.json)  # type: ignore[method-assign]
        return response


def _decode(decode: Callable[..., Any], **kwargs: Any) -> Any:
    """Return a body's JSON; raise JSONDecodeError if it is nested too deeply."""
    try:
        return decode(**kwargs)
    except RecursionError as e:
        raise requests.JSONDecodeError("it is nested too deeply", "", 0) from e


def _bound_reads(manager: Any, connection_class: type) -> Any:
    pools = manager.pool_classes_by_scheme
    manager.pool_classes_by_scheme = {
        scheme: _bounded(pool, connection_class) for scheme, pool in pools.items()
    }
    return manager


@functools.cache
def _bounded(pool: Any, connection_class: type) -> Any:
    if pool.ConnectionCls.response_class is _Response:
        return pool  # requests returns a proxy's manager again
    own = () if connection_class is object else (connection_class,)
    bases = (*own, pool.ConnectionCls)
    connection = type("Connection", bases, {"response_class": _Response})
    return type("Pool", (pool,), {"ConnectionCls": connection, "__str__": _address_of})


def _address_of(pool: Any) -> str:
    return addresses.with_port(pool.host, pool.port)


class _Response(http.client.HTTPResponse):
    """Reads status line, headers and body within the timeout of its socket."""

    def __init__(self, sock: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_Reader(self.fp.detach(), sock, _PACE.get()))


class _Reader(io.RawIOBase):
    """Reads from a socket, and spends its timeout in all reads together."""

    def __init__(self, raw: Any, sock: Any, pace: _Pace) -> None:
        self._raw, self._sock, self._pace = raw, sock, pace
        self._left_s = self._within_s = sock.gettimeout()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._left_s <= 0:
            raise TimeoutError("the response takes too long")
        self._sock.settimeout(min(self._left_s, self._pace.silence_s))
        began_s = time.monotonic()
        count: int = self._raw.readinto(buffer)
        spent_s = time.monotonic() - began_s - count / self._pace.bytes_per_s
        self._left_s = min(self._left_s - spent_s, self._within_s)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Body:
    """Stands in for the response of urllib3, from which requests reads the body."""

    def __init__(self, raw: Any, max_bytes: int) -> None:
        self._raw, self._max_bytes, self._left_bytes = raw, max_bytes, max_bytes
        self.close, self.release_conn = raw.close, raw.release_conn

    def stream(self, count: int, decode_content: bool) -> Iterator[bytes]:
        """Yield the body in pieces as they arrive; ConnectFailure if it is too large."""
        while data := self._raw.read1(count, decode_content=decode_content):
            yield self._counted(data)

    def read(self, count: int) -> bytes:
        return self._counted(self._raw.read(count, decode_content=False))

    def _counted(self, data: bytes) -> bytes:
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            self.close()
            why = f"the answer takes more than {self._max_bytes} bytes"
            raise exceptions.ConnectFailure(why)
        return data
