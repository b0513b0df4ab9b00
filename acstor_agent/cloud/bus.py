# SPDX-License-Identifier: Apache-2.0
"""Message bus client of the agent, the only user of oslo.messaging in it.

The agent never waits for the broker: a thread empties a bounded send queue, which drops the oldest
message when it is full, and retries. Threads of oslo.messaging call back with received messages.
A thread that waits for a broker cannot be stopped; it ends with the process.
"""

import collections
import logging
import threading
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import oslo_messaging

from acstor_common import errors
from acstor_common.util import supervision
from acstor_common.wire import decision_messages
from acstor_common.wire import message_bus

LOG = logging.getLogger(__name__)

QUEUE_LIMIT = 64  # messages that wait for the broker; 5 minutes of samples
SEND_RETRIES = 1
RETRY_S = 1.0


class _Message(NamedTuple):
    topic: str
    method: str
    payload: Mapping[str, Any]
    is_fanout: bool


ReportFault = Callable[[str], None]
"""Called in a thread with the reason why messages cannot be sent; empty: they can."""


def open_bus(
    host: str,
    files: Sequence[str],
    folders: Sequence[str] = (),
    report_fault: ReportFault = lambda _: None,
    retry_s: float = RETRY_S,
) -> "Bus":
    """Return the configured bus, on which this agent's address is ``host``.

    :param retry_s: pause after a failure to send
    :raises errors.Unusable: oslo.messaging does not support the broker's URL
    """
    transport = message_bus.open_global_transport(files, folders)
    return Bus(host, transport, report_fault, retry_s)


class Bus:
    """Casts and receives messages, and counts those ``sent`` and ``dropped``."""

    def __init__(
        self,
        host: str,
        transport: oslo_messaging.transport.Transport,
        report_fault: ReportFault = lambda _: None,
        retry_s: float = RETRY_S,
    ) -> None:
        self.sent = 0
        self.dropped = 0
        self._host, self._report_fault, self._retry_s = host, report_fault, retry_s
        self._transport = transport
        self._queue: collections.deque[_Message] = collections.deque()
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._servers: list[message_bus.BusServer] = []
        self._sender = supervision.start(
            "bus-sender", self._send_forever, self._stopping, is_vital=False
        )

    def cast_message(
        self, topic: str, method: str, payload: Mapping[str, Any], *, is_fanout: bool = False
    ) -> None:
        """Queue JSON data for one subscriber or, as fanout, for all; thread-safe, never waits."""
        with self._changed:
            self._queue.append(_Message(topic, method, payload, is_fanout))
            if len(self._queue) > QUEUE_LIMIT:
                self._queue.popleft()
                self.dropped += 1
            self._changed.notify()

    def call_method(
        self, topic: str, method: str, payload: Mapping[str, Any], timeout_s: float
    ) -> object:
        """Return the response to a request, or raise DecisionUnreachable without one; blocks."""
        target = oslo_messaging.Target(topic=topic, version=decision_messages.VERSION)
        client = oslo_messaging.get_rpc_client(
            self._transport, target, retry=SEND_RETRIES, timeout=timeout_s
        )
        try:
            return client.call({}, method, payload=payload)
        except Exception as e:  # errors of drivers vary, as of kombu and amqp
            why = message_bus.why_unreachable(e, self._transport)
            raise errors.DecisionUnreachable("the message bus", why) from e

    def subscribe(self, topic: str, handlers: Mapping[str, message_bus.Handler]) -> None:
        """Receive messages to a topic by handlers of payloads (``handlers``), by method."""
        endpoint = message_bus.Endpoint(handlers)
        supervision.start(
            "bus-listener", lambda: self._serve(topic, endpoint), self._stopping, is_vital=False
        )

    def stop(self) -> None:
        """Close the connection and drop queued messages; waits a few seconds at most."""
        self._stopping.set()
        with self._changed:
            self._changed.notify()
        message_bus.close_in_background(self._close)()

    def _close(self) -> None:
        self._sender.join()
        for server in self._servers:
            server.close()
        self._transport.cleanup()

    # In threads of their own

    def _serve(self, topic: str, endpoint: message_bus.Endpoint) -> None:
        target = oslo_messaging.Target(topic=topic, server=self._host)
        server = message_bus.serve(self._transport, target, endpoint, self._stopping)
        if server is not None:
            self._servers.append(server)

    def _send_forever(self) -> None:
        logged = ""
        while (message := self._next_message()) is not None:
            try:
                self._send(message)
            except Exception as e:  # errors of drivers vary, as of kombu and amqp
                why = message_bus.why_unreachable(e, self._transport)
                if why != logged:
                    LOG.warning("the message bus is unreachable: %s; trying again", why)
                    self._report_fault(why)
                logged = why
                self._put_back(message)
                self._stopping.wait(self._retry_s)
            else:
                if logged:
                    LOG.info("the message bus is reachable again")
                    self._report_fault("")
                logged = ""
                self.sent += 1

    def _next_message(self) -> _Message | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._stopping.is_set())
            return None if self._stopping.is_set() else self._queue.popleft()

    def _put_back(self, message: _Message) -> None:
        with self._changed:
            if len(self._queue) < QUEUE_LIMIT:
                self._queue.appendleft(message)
            else:
                self.dropped += 1

    def _send(self, message: _Message) -> None:
        target = oslo_messaging.Target(
            topic=message.topic, fanout=message.is_fanout, version=decision_messages.VERSION
        )
        client = oslo_messaging.get_rpc_client(self._transport, target, retry=SEND_RETRIES)
        client.cast({}, message.method, payload=message.payload)
