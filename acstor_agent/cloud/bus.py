# SPDX-License-Identifier: Apache-2.0
"""The message bus, as far as an agent has to do with it: the only place of oslo.messaging here.

Nobody in the agent waits for the broker.  What is to be sent goes into a bounded
queue that a thread empties; the oldest message is dropped when it is full, and a
broker that is gone is looked for again and again.  What comes in is handed to
callbacks in threads of oslo.messaging.

oslo.messaging works with the global configuration alone, so :func:`open_bus`
reads the agent's files a second time, into that.  Its threads live until
:meth:`Bus.stop`, or until the process ends: one that waits for a broker cannot be
stopped, and keeps nobody from leaving.
"""

import collections
import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import oslo_messaging
from oslo_config import cfg

from acstor_common.util import supervision
from acstor_common.wire import decision_messages
from acstor_common.wire import message_bus

LOG = logging.getLogger(__name__)

QUEUE_LIMIT = 64
"""Messages that wait for the broker; at one sample in 5 s those of the last 5 minutes."""
SEND_RETRIES = 1
AGAIN_AFTER_S = 1.0


class _Message(NamedTuple):
    topic: str
    method: str
    payload: Mapping[str, Any]
    is_fanout: bool


Tell = Callable[[str], None]
"""Is told in a thread of the bus why messages cannot be sent; empty: they can."""


def open_bus(
    host: str,
    files: Sequence[str],
    folders: Sequence[str] = (),
    tell: Tell = lambda _: None,
) -> "Bus":
    """Return the bus that the configuration names.

    :param host: the name under which this agent can be sent a message alone
    :param files: the agent's configuration files
    :param folders: its configuration folders
    :raises errors.Unusable: what it names is no broker that oslo.messaging knows
    """
    args = [part for file in files for part in ("--config-file", file)]
    args += [part for folder in folders for part in ("--config-dir", folder)]
    cfg.CONF(args, project="acstor", default_config_files=[], default_config_dirs=[])
    transport = message_bus.open_transport(cfg.CONF)
    return Bus(host, transport, tell)


class Bus:
    """Casts messages and hears them.

    ``sent`` and ``dropped`` count messages since the start.

    :param host: the name under which this agent can be sent a message alone
    """

    def __init__(
        self,
        host: str,
        transport: oslo_messaging.transport.Transport,
        tell: Tell = lambda _: None,
    ) -> None:
        self.sent = 0
        self.dropped = 0
        self._host, self._tell = host, tell
        self._transport = transport
        self._queue: collections.deque[_Message] = collections.deque()
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._servers: list[message_bus.BusServer] = []
        self._sender = supervision.start(
            "bus-sender", self._send_all, self._stopping, is_vital=False
        )

    def cast_message(
        self, topic: str, method: str, payload: Mapping[str, Any], *, is_fanout: bool = False
    ) -> None:
        """Send a message when the broker is there; never waits, may be called from any thread.

        :param topic: who is to hear it: one of those that listen there, or all (``is_fanout``)
        :param payload: what JSON can say (:func:`acstor_common.wire.decision_messages.encode`)
        """
        with self._changed:
            self._queue.append(_Message(topic, method, payload, is_fanout))
            if len(self._queue) > QUEUE_LIMIT:
                self._queue.popleft()
                self.dropped += 1
            self._changed.notify()

    def subscribe(self, topic: str, heard: Mapping[str, message_bus.Heard]) -> None:
        """Hear what is sent to ``topic``, to all there or to this host, once the broker is there.

        :param heard: what to do with the payload, by method
        """
        endpoint = message_bus.Endpoint(heard, time.monotonic)
        supervision.start(
            "bus-listener",
            lambda: self._serve(topic, endpoint),
            self._stopping,
            is_vital=False,
        )

    def stop(self) -> None:
        """Let go of the broker; what waits to be sent is dropped.  Waits a few seconds at most."""
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

    def _send_all(self) -> None:
        told = ""
        while (message := self._take()) is not None:
            try:
                self._send(message)
            except Exception as e:  # errors of kombu's and amqp's own, AccessRefused for one
                why = message_bus.why_unreachable(e, self._transport)
                if why != told:
                    LOG.warning("the message bus is unreachable: %s; trying again", why)
                    self._tell(why)
                told = why
                self._put_back(message)
                self._stopping.wait(AGAIN_AFTER_S)
            else:
                if told:
                    LOG.info("the message bus is back")
                    self._tell("")
                told = ""
                self.sent += 1

    def _take(self) -> _Message | None:
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
