# SPDX-License-Identifier: Apache-2.0
"""Range requests over a bounded number of HTTP connections.

Redirects are followed where the source allows it, without credentials for other servers; the
environment is not read for proxies or credentials.
"""

import base64
import contextlib
import dataclasses
import functools
import math
from collections.abc import AsyncIterator
from collections.abc import Mapping

import h11
import trio
from oslo_config import cfg

from acstor_agent.core.sources import hung_calls
from acstor_agent.sources import driver
from acstor_agent.sources.http_client import http_connector
from acstor_agent.sources.http_client import http_endpoint
from acstor_agent.sources.http_client import http_range
from acstor_agent.sources.http_client import http_response
from acstor_agent.sources.http_client import http_stream
from acstor_common import errors
from acstor_common.identity import credentials

CONNECTIONS = 8
TIMEOUT_S = 5.0
KEEP_ALIVE_S = 60.0
REFUSALS = 400  # least status of an error
RTT_GROWTH = 1.01
"""By this factor the least round-trip time may grow with each response, as on a new route."""
_HEADERS = (("User-Agent", "acstor-agent"), ("Accept-Encoding", "identity"))
_NOTHING: Mapping[str, str] = {}


@dataclasses.dataclass(frozen=True)
class HttpLimits:
    """Limits of a pool."""

    connections: int = CONNECTIONS  # each with one request in flight
    timeout_s: float = TIMEOUT_S  # for a connection, and of silence
    ca_file: str | None = None  # PEM file; None: the system's authorities
    keep_alive_s: float = KEEP_ALIVE_S  # of an idle connection


def options() -> list[cfg.Opt]:
    """Return the options of a source's group that :func:`limits_of` reads."""
    return [
        cfg.FloatOpt(
            "timeout_s",
            default=TIMEOUT_S,
            min=0.1,
            help="Time without data from the server after which a request fails. Each is tried "
            "three times. If there is another source, the agent asks that one sooner.",
        ),
        cfg.StrOpt(
            "ca_file",
            help="PEM file of the authority that signed the server's certificate; the "
            "system's authorities by default.",
        ),
    ]


def limits_of(group: cfg.ConfigOpts.GroupAttr) -> HttpLimits:
    """Return the limits in a group with :func:`options`."""
    return HttpLimits(timeout_s=group.timeout_s, ca_file=group.ca_file)


class HttpPool:
    """Connections to a server, kept open.

    :param own: credentials of this host, for servers that ask for them; instead of ``ca_file``
    :param follows_redirects: as :func:`http_range.redirect_target` allows
    :raises errors.Unusable: the file of the authority cannot be used
    """

    def __init__(
        self,
        what: str,
        limits: HttpLimits,
        auth: tuple[str, str] | None = None,
        own: credentials.Credentials | None = None,
        *,
        follows_redirects: bool = False,
    ) -> None:
        self.connections = limits.connections
        self._limits = limits
        self.rtt_s = 0.0  # least round-trip time; 0: unknown
        self._not_before = 0.0
        self._is_closed = False
        self._own = own
        self._context = None if own else http_stream.tls_context(what, limits.ca_file)
        self._connector = http_connector.HttpConnector(f"[{what}]")
        self._follows_redirects = follows_redirects
        self._max_idle = self.connections * (2 if follows_redirects else 1)  # of two servers
        self._credentials: dict[str, str] = {}
        if auth is not None:
            pair = base64.b64encode(":".join(auth).encode()).decode("ascii")
            self._credentials["Authorization"] = f"Basic {pair}"
        self._turns = trio.CapacityLimiter(limits.connections)
        # With the time since which they are idle, newest last.
        self._idle: list[tuple[http_endpoint.HttpEndpoint, http_stream.Stream, float]] = []

    @property
    def hanging(self) -> hung_calls.Hanging:
        """The calls of the resolver that hang now; may be read from any thread."""
        return self._connector.hanging

    async def size_bytes(
        self, range_request: http_range.RangeRequest, headers: Mapping[str, str] = _NOTHING
    ) -> int:
        """Return the blob's size, by a range of one byte or HEAD, or raise ChunkUnavailable."""
        async with self.send_request(range_request, headers) as answer:
            if http_range.is_empty_blob(answer.status, answer.headers):
                return 0
            size = http_range.check_range_response(range_request, answer.status, answer.headers)
            if len(await answer.read_body(1)) < 1:
                raise range_request.transient_error("the body ended after 0 of 1 bytes")
        return await self._size_by_head(range_request, headers) if size is None else size

    async def _size_by_head(
        self, range_request: http_range.RangeRequest, headers: Mapping[str, str]
    ) -> int:
        range_request = dataclasses.replace(range_request, length=0)
        async with self.send_request(range_request, headers, "HEAD") as answer:
            await answer.read_body(0)
            return http_range.check_head_response(range_request, answer.status, answer.headers)

    async def fill_run(
        self,
        run: driver.BlobRun,
        range_request: http_range.RangeRequest,
        headers: Mapping[str, str] = _NOTHING,
    ) -> None:
        """Fill a run with the requested range, or raise ChunkUnavailable."""
        async with self.send_request(range_request, headers) as answer:
            try:
                http_range.check_range_response(range_request, answer.status, answer.headers)
            except http_range.RangeTruncated as end:
                if end.length >= len(run.buffers[0]):  # else it contains no whole piece
                    await answer.fill_run(run, end.length)
                raise
            await answer.fill_run(run, run.length)

    async def download_blob(
        self,
        range_request: http_range.RangeRequest,
        headers: Mapping[str, str],
        size_bytes: int,
        receive: http_response.ReceivePart,
    ) -> None:
        """Pass a blob of ``size_bytes`` to ``receive`` in parts, or raise ChunkUnavailable."""
        async with self.send_request(range_request, headers) as answer:
            http_range.check_full_response(range_request, answer.status, answer.headers, size_bytes)
            count_bytes = await answer.stream_body(size_bytes, receive)
            if count_bytes < size_bytes:
                why = f"the body ended after {count_bytes} of {size_bytes} bytes"
                raise range_request.transient_error(why)

    async def aclose(self) -> None:
        """Close idle connections; those in use are closed after use."""
        self._is_closed = True
        self._close_idle()

    def _close_idle(self, server: http_endpoint.HttpEndpoint | None = None) -> None:
        idle, self._idle = self._idle, []
        for whose, stream, since_s in idle:
            if server in (None, whose):
                stream.close()
            else:
                self._idle.append((whose, stream, since_s))

    @contextlib.asynccontextmanager
    async def send_request(
        self,
        range_request: http_range.RangeRequest,
        headers: Mapping[str, str] = _NOTHING,
        method: str = "GET",
    ) -> AsyncIterator[http_response.HttpResponse]:
        """Send a request; yield its response, with an unread body, or raise SourceUnreachable."""
        if trio.current_time() < self._not_before:
            await trio.sleep_until(self._not_before)
        url, credentials = range_request.where, {**self._credentials, **headers}
        server, request = _request_of(range_request, method, url, credentials)
        stream, answer, followed, first_peer = None, None, 0, ""
        await self._take_turn()
        try:
            while True:
                stream = self._idle_to(server) or await self._connect(server)
                if followed:
                    http_range.check_redirect_target(range_request, url, stream.peer, first_peer)
                answer = await self._receive_head(range_request, stream, request)
                if not self._follows_redirects or answer.status not in http_range.REDIRECTS:
                    break
                url = http_range.redirect_target(range_request, url, answer.headers, followed)
                followed, first_peer = followed + 1, first_peer or stream.peer
                await answer.drain_body()
                self._keep_or_close(server, stream, answer.is_over)
                stream = answer = None
                server, request = _request_of(range_request, method, url, credentials)
            yield answer
        except errors.ChunkUnavailable:
            await _drain_refusal(answer)
            raise
        except (OSError, h11.ProtocolError) as error:
            self._close_idle(server)  # what broke this connection may have broken them
            via = f", after a redirect to {server.authority}" if followed else ""
            raise range_request.transient_error(_reason(error) + via) from error
        finally:
            if stream is not None:
                self._end_request(server, stream, answer)
            self._turns.release()

    def _end_request(
        self,
        server: http_endpoint.HttpEndpoint,
        stream: http_stream.Stream,
        answer: http_response.HttpResponse | None,
    ) -> None:
        is_clean = answer is not None and answer.is_over
        if is_clean:  # of the server that has the bytes, not of one that redirects
            self.rtt_s = min(stream.least_rtt_s(), self.rtt_s * RTT_GROWTH or math.inf)
        self._keep_or_close(server, stream, is_clean)

    async def _receive_head(
        self,
        range_request: http_range.RangeRequest,
        stream: http_stream.Stream,
        request: h11.Request,
    ) -> http_response.HttpResponse:
        """Send a request; return its response, and note a pause that the server asks for."""
        answer = http_response.HttpResponse(range_request, stream)
        await answer.send_request(request)
        if pause_s := http_range.retry_after_s(answer.headers):
            self._not_before = trio.current_time() + pause_s
        return answer

    async def _take_turn(self) -> None:
        try:
            self._turns.acquire_nowait()
        except trio.WouldBlock:
            await self._turns.acquire()

    async def _connect(self, server: http_endpoint.HttpEndpoint) -> http_stream.Stream:
        context = None
        if server.is_tls:
            context = self._own.client_context() if self._own else self._context
        return await http_stream.connect(
            self._connector, server.host, server.port, context, self._limits.timeout_s
        )

    def _idle_to(self, server: http_endpoint.HttpEndpoint) -> http_stream.Stream | None:
        """Return the latest usable idle connection to a server; close unusable ones."""
        found = None
        kept = []
        while self._idle and found is None:
            whose, stream, since_s = self._idle.pop()
            if whose != server:
                kept.append((whose, stream, since_s))
            elif trio.current_time() - since_s < self._limits.keep_alive_s and stream.is_idle():
                found = stream
            else:
                stream.close()
        self._idle += reversed(kept)
        return found

    def _keep_or_close(
        self, server: http_endpoint.HttpEndpoint, stream: http_stream.Stream, is_clean: bool
    ) -> None:
        if self._is_closed or not is_clean:
            stream.close()
            return
        self._idle.append((server, stream, trio.current_time()))
        if len(self._idle) > self._max_idle:
            self._idle.pop(0)[1].close()


async def _drain_refusal(answer: http_response.HttpResponse | None) -> None:
    """Read a short refusal, as of a boot image, so that the connection can be reused."""
    if answer is not None and answer.status >= REFUSALS and not answer.is_over:
        with contextlib.suppress(OSError, h11.ProtocolError, errors.SourceUnreachable):
            await answer.drain_body()


def _request_of(
    range_request: http_range.RangeRequest, method: str, url: str, credentials: Mapping[str, str]
) -> tuple[http_endpoint.HttpEndpoint, h11.Request]:
    """Return a URL's server and the request head; credentials go to the first only."""
    try:
        server, target = http_endpoint.endpoint_of(url)
        is_first = server == http_endpoint.endpoint_of(range_request.where)[0]
    except ValueError as error:
        raise range_request.transient_error(str(error)) from error
    head = ("Host", server.authority), *_HEADERS, *(credentials.items() if is_first else ())
    try:
        return server, _request(method, target, head)
    except (h11.LocalProtocolError, UnicodeEncodeError):  # their texts contain the values
        why = f"a value of {', '.join(name for name, _ in head)} is not valid in HTTP"
        raise range_request.transient_error(f"invalid request: {why}") from None


@functools.lru_cache(http_endpoint.URLS_REMEMBERED)
def _request(method: str, target: str, headers: tuple[tuple[str, str], ...]) -> h11.Request:
    return h11.Request(method=method, target=target, headers=list(headers))


def _reason(error: Exception) -> str:
    below: BaseException = error
    while isinstance(below.__cause__, OSError | ExceptionGroup):  # trio groups one for each address
        cause = below.__cause__
        below = cause.exceptions[0] if isinstance(cause, ExceptionGroup) else cause
    return f"{type(below).__name__} {below}".rstrip()
