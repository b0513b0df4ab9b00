# SPDX-License-Identifier: Apache-2.0
"""Reads blobs by HTTP range requests from any web server.

What the answers mean is in http_range.py; here are the connections.  Never more
than one network read too many is taken in, whatever the server sends.
Redirects are not followed; proxies and credentials are not taken from the
environment.

Measured with 8 requests in flight over loopback, in CPU seconds of the client
per GB: httpx 0.28 takes 1.2 for ranges of 1 MiB and 7.0 for 64 KiB, httpcore by
itself 1.0 and 5.0, a bare trio socket 0.2 and 0.5.  Joining reads saves more than
another library would: 64 reads of 64 KiB at a time through coalesce take 3.8,
verified.
"""

import contextlib
import logging
import ssl
from collections.abc import AsyncIterator

import httpx
import trio
from oslo_config import cfg

from acstor_agent.sources import base
from acstor_agent.sources import http_range
from acstor_common import errors
from acstor_common import ids

CONNECTIONS = 8
TIMEOUT_S = 5.0
KEEP_ALIVE_S = 60.0

# It has one line for every request, which here is one for every few chunks.
logging.getLogger("httpx").setLevel(logging.WARNING)


class HttpSource(base.Driver):
    """The blobs below ``url``, over a bounded number of connections that are kept open.

    :param url: base URL; the blob's file name is appended
    :param timeout_s: how long the server may take to accept a connection, or stay silent
    :param ca_file: PEM file of the authority that signed the server's certificate; the
        system's authorities if None
    :raises errors.Unusable: the URL or the file makes no sense
    """

    def __init__(
        self,
        url: str,
        connections: int = CONNECTIONS,
        timeout_s: float = TIMEOUT_S,
        ca_file: str | None = None,
    ) -> None:
        parsed = _parsed(url)
        self._base_url = str(parsed.copy_with(userinfo=b"")).rstrip("/") + "/"
        self._connections = connections
        self._not_before = 0.0
        self._client = httpx.AsyncClient(
            auth=(parsed.username, parsed.password) if parsed.userinfo else None,
            headers={"Accept-Encoding": "identity"},
            # A read that finds no free connection waits for one as long as its caller does.
            timeout=httpx.Timeout(timeout_s, pool=None),
            limits=httpx.Limits(
                max_connections=connections,
                max_keepalive_connections=connections,
                keepalive_expiry=KEEP_ALIVE_S,
            ),
            verify=_tls_context(ca_file),
            trust_env=False,
        )

    @classmethod
    def options(cls) -> list[cfg.Opt]:
        """Return the options of the group ``source_http``."""
        return [
            cfg.StrOpt(
                "url",
                secret=True,
                help="Base URL; <image id>.raw and <image id>.acmap are appended. It may contain "
                "a user name and a password, but no query.",
            ),
            cfg.IntOpt(
                "connections",
                default=CONNECTIONS,
                min=1,
                help="Connections to the server, each with one request in flight.",
            ),
            cfg.FloatOpt(
                "timeout_s",
                default=TIMEOUT_S,
                min=0.1,
                help="How long the server may stay silent before a request is given up. It is made "
                "three times: keep the sum below [acstor_agent] read_deadline_s, or the next "
                "source is asked too late.",
            ),
            cfg.StrOpt(
                "ca_file",
                help="PEM file of the authority that signed the server's certificate; the "
                "system's authorities by default.",
            ),
        ]

    @classmethod
    def from_conf(cls, group: cfg.ConfigOpts.GroupAttr) -> "HttpSource":
        """Make the source from the group ``source_http``."""
        return cls(group.url or "", group.connections, group.timeout_s, group.ca_file)

    @property
    def where(self) -> str:
        """The base URL without credentials."""
        return self._base_url

    @property
    def in_flight(self) -> int:
        """One request per connection."""
        return self._connections

    async def size_bytes(self, blob: base.Blob) -> int:
        """Return the size that the answer to a range of one byte tells.

        That, and not HEAD, because it shows as well whether the server does ranges.
        """
        asked = http_range.Asked(f"the size of {blob.name}", self._base_url + blob.name, 0, 1)
        async with self._answer(asked) as response:
            if http_range.is_of_empty_blob(response.status_code, response.headers):
                return 0
            size = http_range.check_answer(asked, response.status_code, response.headers)
            await _body(asked, response)
        if size is None:
            raise asked.missing("the server does not say how long the blob is")
        return size

    async def read(
        self, blob: base.Blob, offset: int, length: int, cid: ids.Cid | None = None
    ) -> bytes:
        """Read the range with one request."""
        base.check_range(blob, offset, length)
        if length == 0:
            return b""
        what = blob.part(offset, length)
        asked = http_range.Asked(what, self._base_url + blob.name, offset, length)
        async with self._answer(asked) as response:
            http_range.check_answer(asked, response.status_code, response.headers)
            return await _body(asked, response)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    @contextlib.asynccontextmanager
    async def _answer(self, asked: http_range.Asked) -> AsyncIterator[httpx.Response]:
        """Send the request; its answer's body is not read yet, and if nobody does, never is."""
        await trio.sleep_until(self._not_before)
        try:
            async with self._client.stream(
                "GET", asked.where, headers={"Range": asked.header}
            ) as response:
                if pause_s := http_range.pause_s(response.headers):
                    self._not_before = trio.current_time() + pause_s
                yield response
        except httpx.HTTPError as error:
            raise asked.unreachable(_reason(error)) from error


async def _body(asked: http_range.Asked, response: httpx.Response) -> bytes:
    """Return the body, which has the length that was asked for."""
    parts: list[bytes] = []
    got = 0
    async for part in response.aiter_raw():
        got += len(part)
        if got > asked.length:
            raise asked.unreachable(f"the body is longer than {asked.length} bytes")
        parts.append(part)
    if got < asked.length:
        raise asked.unreachable(f"the body ended after {got} of {asked.length} bytes")
    return b"".join(parts)


def _reason(error: httpx.HTTPError) -> str:
    """Return what went wrong; where httpx has no words, those of the error below it."""
    root: BaseException = error
    while not str(root) and (below := root.__cause__ or root.__context__) is not None:
        root = below
    return f"{type(error).__name__} {root}".rstrip()


def _parsed(url: str) -> httpx.URL:
    """Return ``url`` if blobs can be below it; no message shows it, it may hold a password."""
    what, remedy = "[source_http] url", "Set it to something like http://images.example.org/acstor/"
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        raise errors.Unusable(what, "it is not a URL", remedy) from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise errors.Unusable(what, "it is not an http:// or https:// URL", remedy)
    if parsed.query or parsed.fragment:
        raise errors.Unusable(what, "it has a query or a fragment; blob names go last", remedy)
    return parsed


def _tls_context(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise errors.Unusable("[source_http] ca_file", f"{ca_file}: {error}") from error
