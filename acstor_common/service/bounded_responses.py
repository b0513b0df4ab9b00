# SPDX-License-Identifier: Apache-2.0
"""Bounds size, depth and duration of the responses that a keystoneauth session reads.

keystoneauth reads a whole body into memory, and its timeout is one of silence: each byte restarts
it, also in the status line and headers.  http.client bounds the size of headers.
"""

import contextvars
import functools
import http.client
import io
import math
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import Final

import requests
import urllib3
from keystoneauth1 import exceptions
from keystoneauth1 import session as keystone_session

MAX_BYTES: Final = 4 << 20
"""Of a body; a token response contains the service catalog."""
MAX_LIST_BYTES: Final = 16 << 20
"""Of a body with a page of 1,000 servers or images."""
WITHIN_S: Final = 120.0
"""From the connection to the last byte of the body; after an upload, from its end."""
STREAM_BYTES_PER_S: Final = 64 << 10
"""Least rate of streamed image data, which may be WITHIN_S behind it."""
_IMAGE_DATA: Final = "application/octet-stream"


def bound(
    session: keystone_session.Session, max_bytes: int = MAX_BYTES, within_s: float = WITHIN_S
) -> None:
    """Make a session fail on larger, slower or deeper responses, as on a lost connection.

    Image data that the caller streams has any size, and a least rate instead of a deadline.  A
    request with a timeout (connect, read) may wait for the answer to an upload as long as it says.
    """
    for scheme in ("http://", "https://"):
        session.session.mount(scheme, _Adapter(max_bytes, within_s))


class _Pace:
    """What a response must keep up with: longest silence, and least rate."""

    def __init__(self, silence_s: float | None) -> None:
        self.silence_s = math.inf if silence_s is None else silence_s
        self.bytes_per_s = math.inf


_PACE: contextvars.ContextVar[_Pace] = contextvars.ContextVar("pace")
"""Of the response that this thread requests; urllib3 passes nothing through to http.client."""


class _Adapter(keystone_session.TCPKeepAliveAdapter):
    def __init__(self, max_bytes: int, within_s: float) -> None:
        super().__init__()
        self._max_bytes, self._within_s = max_bytes, within_s

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        _bound_reads(self.poolmanager)

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        return _bound_reads(super().proxy_manager_for(*args, **kwargs))

    def send(  # type: ignore[override]
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: float | tuple[float, float] | None = None,
        **kwargs: Any,
    ) -> requests.Response:
        connect_s, silence_s = timeout if isinstance(timeout, tuple) else (timeout, timeout)
        upload_s = silence_s if isinstance(timeout, tuple) else self._within_s
        pace = _Pace(silence_s)
        if isinstance(request.body, str | bytes | None):
            limits = urllib3.Timeout(total=self._within_s, connect=connect_s)
        else:  # it takes its time; then the socket's timeout is what is left for the response
            limits = urllib3.Timeout(connect=connect_s, read=upload_s)
        token = _PACE.set(pace)
        try:
            response = super().send(request, stream, limits, **kwargs)  # type: ignore[arg-type]
        finally:
            _PACE.reset(token)
        if stream and response.ok and response.headers.get("Content-Type") == _IMAGE_DATA:
            pace.bytes_per_s = STREAM_BYTES_PER_S
        else:
            response.raw = _Body(response.raw, self._max_bytes)
        response.json = functools.partial(_decode, response.json)  # type: ignore[method-assign]
        return response


def _decode(decode: Callable[..., Any], **kwargs: Any) -> Any:
    """Return a body's JSON; what is nested too deeply is malformed."""
    try:
        return decode(**kwargs)
    except RecursionError as e:
        raise requests.JSONDecodeError("it is nested too deeply", "", 0) from e


def _bound_reads(manager: Any) -> Any:
    """Make the connections of urllib3's pool manager read responses as :class:`_Response`."""
    pools = manager.pool_classes_by_scheme
    manager.pool_classes_by_scheme = {scheme: _bounded(pool) for scheme, pool in pools.items()}
    return manager


@functools.cache
def _bounded(pool: Any) -> Any:
    if pool.ConnectionCls.response_class is _Response:
        return pool  # requests returns a proxy's manager again
    connection = type("Connection", (pool.ConnectionCls,), {"response_class": _Response})
    return type("Pool", (pool,), {"ConnectionCls": connection})


class _Response(http.client.HTTPResponse):
    """Reads status line, headers and body within the timeout that its socket has."""

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
        self._raw, self._max_bytes = raw, max_bytes
        self.close, self.release_conn = raw.close, raw.release_conn

    def stream(self, count: int, decode_content: bool) -> Iterator[bytes]:
        """Yield the body in pieces as they arrive; ConnectFailure if it is too large."""
        size_bytes = 0
        while data := self._raw.read1(count, decode_content=decode_content):
            size_bytes += len(data)
            if size_bytes > self._max_bytes:
                self.close()
                why = f"the answer takes more than {self._max_bytes} bytes"
                raise exceptions.ConnectFailure(why)
            yield data
