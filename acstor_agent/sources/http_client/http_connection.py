# SPDX-License-Identifier: Apache-2.0
"""One connection to a server, and its requests, which are answered in order."""

import collections
import dataclasses

import trio

from acstor_agent.core.sources import connection_choice
from acstor_agent.sources.http_client import http_endpoint
from acstor_agent.sources.http_client import http_response
from acstor_agent.sources.http_client import http_stream


@dataclasses.dataclass(eq=False, slots=True)
class Pending:
    """A request on a connection, until its answer is read or given up."""

    connection: "HttpConnection"
    length: int  # of the answer
    turn: trio.Event | None = None  # when former answers are read; None: there were none
    is_sent: bool = False
    is_lost: bool = False  # a former answer was given up

    def wake(self) -> None:
        """Let the request read its answer, or find it lost."""
        if self.turn is not None:
            self.turn.set()


class HttpConnection:
    """A connection and its pending requests, the first of which may read its answer."""

    def __init__(self, server: http_endpoint.HttpEndpoint, stream: http_stream.Stream) -> None:
        self.server, self.stream = server, stream
        self.idle_since_s = 0.0
        self.is_ending = False  # no request can follow
        self._pending: collections.deque[Pending] = collections.deque()
        self._received_bytes = 0

    @property
    def is_idle(self) -> bool:
        """Whether there is no pending request."""
        return not self._pending

    @property
    def can_be_followed(self) -> bool:
        """Whether a request may be sent behind others, of which no read goes beyond an answer."""
        if self.is_ending or not self._pending:
            return False
        last = self._pending[-1]
        return last.is_sent and last.length >= http_response.HEAD_BYTES

    def candidate(self, rtt_s: float, now_s: float) -> connection_choice.Candidate:
        """Return what the choice of a connection depends on."""
        idle_s = now_s - self.idle_since_s if self.is_idle else 0.0
        window_bytes = connection_choice.window_bytes(self._received_bytes, idle_s, rtt_s)
        unread_bytes = sum(pending.length for pending in self._pending)
        return connection_choice.Candidate(len(self._pending), unread_bytes, window_bytes)

    def add(self, length: int) -> Pending:
        """Add a request, whose ``turn`` comes when all former answers are read."""
        pending = Pending(self, length, trio.Event() if self._pending else None)
        self._pending.append(pending)
        return pending

    def end(self, pending: Pending, now_s: float, *, is_clean: bool) -> None:
        """End a request; if its answer is not read to the end, those behind it are lost."""
        if pending.is_lost:
            return
        at = self._pending.index(pending)
        if is_clean and not at:
            self._pending.popleft()
            self._received_bytes += pending.length
            self.idle_since_s = now_s
            if self._pending:
                self._pending[0].wake()
        else:
            self.is_ending = True
            while len(self._pending) > at:
                behind = self._pending.pop()
                behind.is_lost = True
                behind.wake()
        if self.is_ending and not self._pending:
            self.stream.close()
