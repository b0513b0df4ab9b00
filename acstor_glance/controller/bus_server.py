# SPDX-License-Identifier: Apache-2.0
"""Message bus server for messages from agents and from the decision service."""

import logging
import socket
import threading
from collections.abc import Callable
from collections.abc import Mapping

import oslo_messaging
from oslo_config import cfg

from acstor_common.util import supervision
from acstor_common.wire import decision_messages
from acstor_common.wire import message_bus
from acstor_common.wire import trace_message

LOG = logging.getLogger(__name__)


class BusServer:
    """Serves messages to listeners, each to one; ``handlers`` by method."""

    def __init__(self, conf: cfg.ConfigOpts, handlers: Mapping[str, message_bus.Handler]) -> None:
        self._transport = message_bus.open_transport(conf)
        self._endpoint = message_bus.Endpoint(handlers)
        self._stopping = threading.Event()
        self._server: message_bus.BusServer | None = None

    def start(self) -> None:
        """Start serving in the background, as soon as the broker answers."""
        supervision.start("acstor-bus-server", self._serve, self._stopping)

    def stop(self) -> Callable[[], None]:
        """Stop serving; return a function that waits some seconds for the disconnection."""
        self._stopping.set()
        return message_bus.close_in_background(self._close)

    def _serve(self) -> None:
        target = oslo_messaging.Target(
            exchange=decision_messages.EXCHANGE,
            topic=trace_message.TOPIC,
            server=socket.gethostname(),
        )
        self._server = message_bus.serve(self._transport, target, self._endpoint, self._stopping)
        if self._server is not None:
            LOG.info("listening for requests and boot traces")

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._transport.cleanup()
