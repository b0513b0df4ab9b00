# SPDX-License-Identifier: Apache-2.0
"""The bus's server: what agents and the decision service may tell those who prepare images.

A message that makes no sense costs a look and a line in the log.
"""

import logging
import socket
import threading
import time
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
    """Hears, in one of all listeners at a time, what is sent to those who prepare images.

    :param conf: the global configuration object: oslo.messaging works with no other
    :param heard: what to do with the payload, by method
    :raises errors.Unusable: ``transport_url`` names no broker that oslo.messaging knows
    """

    def __init__(self, conf: cfg.ConfigOpts, heard: Mapping[str, message_bus.Heard]) -> None:
        self._transport = message_bus.open_transport(conf)
        self._endpoint = message_bus.Endpoint(heard, time.monotonic)
        self._stopping = threading.Event()
        self._server: message_bus.BusServer | None = None

    def start(self) -> None:
        """Begin to hear as soon as the broker answers; waits for nothing."""
        supervision.start("acstor-bus-server", self._serve, self._stopping)

    def stop(self) -> Callable[[], None]:
        """Hear no more; return what waits until the broker is let go of, a few seconds at most."""
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
