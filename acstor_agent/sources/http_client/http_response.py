# SPDX-License-Identifier: Apache-2.0
"""The response to one HTTP request, read from a stream.

A body of exactly the requested length is received into its final buffers; of any other, at most
that length and one network read are accepted.
"""

from collections.abc import Awaitable
from collections.abc import Callable

import h11
import trio

from acstor_agent.sources import driver
from acstor_agent.sources.http_client import http_range
from acstor_agent.sources.http_client import http_stream
from acstor_common.model import geometry

HEAD_BYTES = 4096
"""Bytes received at a time until a head is complete, and so copied of a body at most."""
PART_BYTES = 64 * geometry.KIB  # bytes received at a time of a body without the requested length
EVENTS_PER_TURN = 64
"""Heads and parts of bodies before other tasks get a turn; h11 needs 10 us for each."""
DRAIN_S = 0.5  # to keep a connection; a new one costs less than a longer wait
MAX_HINTS = 8  # 1xx responses before the final one (RFC 8297)

ReceivePart = Callable[[bytes], Awaitable[None]]  # takes the next part of a body


class HttpResponse:
    """The response to one request; ``is_over``: read, and the connection is reusable."""

    status = 0
    headers = http_range.Headers(())

    def __init__(self, range_request: http_range.RangeRequest, stream: http_stream.Stream) -> None:
        self.is_over = False
        self._range_request, self._stream = range_request, stream
        self._http = h11.Connection(h11.CLIENT)
        self._is_kept = False
        self._part_bytes = HEAD_BYTES
        self._events = 0

    async def send_request(self, request: h11.Request) -> None:
        """Send the request, and receive the head of the response."""
        sent = self._http.send(request)
        assert sent is not None  # None only for events that end the connection
        if self._range_request.length:  # the last line; the others are cached
            sent = b"%bRange: %b\r\n\r\n" % (sent[:-2], self._range_request.header.encode())
        await self._stream.send(sent)
        for _ in range(1 + MAX_HINTS):
            event = await self._next_event()
            if event is None:
                raise self._range_request.transient_error(
                    "the server closed the connection without an answer"
                )
            if isinstance(event, h11.Response):
                break
        else:
            raise self._range_request.transient_error(
                f"more than {MAX_HINTS} interim answers (1xx) before the final one"
            )
        self.status, self.headers = event.status_code, http_range.Headers(event.headers)
        tokens = self.headers.get("Connection").lower()
        self._is_kept = event.http_version != b"1.0" and "close" not in tokens

    async def fill_run(self, run: driver.BlobRun, length: int) -> None:
        """Read the body into a run, or raise SourceUnreachable if it is not of ``length`` bytes."""
        is_plain = not self.headers.get("Transfer-Encoding")
        if not is_plain or self.headers.get("Content-Length") != str(length):
            run.fill_first(await self._exactly(length))
            return
        early = self._http.trailing_data[0]
        count_bytes = min(len(early), length)
        run.fill_first(memoryview(early)[:count_bytes])
        while count_bytes < length:
            left = driver.rest_of(run.buffers, count_bytes)
            useful_bytes = min(len(left[0]), length - count_bytes)
            got = await self._stream.receive_into(left, useful_bytes)
            if not got:
                why = f"the body ended after {count_bytes} of {length} bytes"
                raise self._range_request.transient_error(why)
            count_bytes += got
            run.pieces_filled(min(count_bytes, length))  # buffers may be larger than the body
        self.is_over = self._is_kept and max(len(early), count_bytes) <= length

    async def read_body(self, limit_bytes: int) -> bytes:
        """Return the whole body, or raise SourceUnreachable if it exceeds ``limit_bytes``."""
        body = bytearray()

        async def receive(part: bytes) -> None:
            body.extend(part)

        await self.stream_body(limit_bytes, receive)
        return bytes(body)

    async def stream_body(self, limit_bytes: int, receive: ReceivePart) -> int:
        """Pass the body to ``receive``; return its length. Raise SourceUnreachable if too long."""
        self._part_bytes, count_bytes = PART_BYTES, 0
        while not isinstance(event := await self._next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                count_bytes += len(event.data)
                if count_bytes > limit_bytes:
                    raise self._range_request.transient_error(
                        f"the body is longer than {limit_bytes} bytes"
                    )
                await receive(bytes(event.data))
        self.is_over = self._is_kept and not self._http.trailing_data[0]
        return count_bytes

    async def drain_body(self) -> None:
        """Read and drop a short body that arrives soon, so that the connection can be reused."""
        if int(self.headers.get("Content-Length", str(HEAD_BYTES + 1))) <= HEAD_BYTES:
            with trio.move_on_after(DRAIN_S):
                await self.read_body(HEAD_BYTES)

    async def _exactly(self, length: int) -> bytes:
        body = await self.read_body(length)
        if len(body) < length:
            raise self._range_request.transient_error(
                f"the body ended after {len(body)} of {length} bytes"
            )
        return body

    async def _next_event(self) -> h11.Event | None:
        """Return the next event of the response; None if the connection is closed instead."""
        self._events += 1
        if self._events % EVENTS_PER_TURN == 0:
            await trio.lowlevel.checkpoint()
        while (event := self._http.next_event()) is h11.NEED_DATA:
            part = bytearray(self._part_bytes)
            got = await self._stream.receive_into([part])
            if not got and self._http.states[h11.SERVER] is h11.SEND_RESPONSE:
                return None
            self._http.receive_data(bytes(memoryview(part)[:got]))
        assert isinstance(event, h11.Event)
        return event
