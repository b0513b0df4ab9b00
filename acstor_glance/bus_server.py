# SPDX-License-Identifier: Apache-2.0
"""The bus's server: what agents and the decision service may tell those who prepare images.

The one rule: a message that makes no sense costs a look and a line in the log.
"""

import logging
import socket
import threading
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import oslo_messaging
from oslo_config import cfg

from acstor_common import decision_api
from acstor_common import errors
from acstor_common import trace_message

LOG = logging.getLogger(__name__)

Heard = Callable[[object], None]
"""Gets a message's payload, unchecked, in a thread."""


class _Endpoint:
    """Methods that others may call, as oslo.messaging wants them."""

    target = oslo_messaging.Target(version=decision_api.VERSION)

    def __init__(self, heard: Mapping[str, Heard]) -> None:
        for method, callback in heard.items():
            setattr(self, method, self._safely(method, callback))

    @staticmethod
    def _safely(method: str, callback: Heard) -> Callable[..., None]:
        def hear(_context: object, payload: object = None) -> None:
            try:
                callback(payload)
            except (errors.RemoteProtocolError, OSError) as exc:
                LOG.warning("message %s is of no use: %s", method, exc)

        return hear


class BusServer:
    """Hears, in one of all listeners at a time, what is sent to those who prepare images.

    :param conf: the global configuration object: oslo.messaging works with no other
    :param heard: what to do with the payload, by method
    """

    def __init__(self, conf: cfg.ConfigOpts, heard: Mapping[str, Heard]) -> None:
        self._conf, self._endpoint = conf, _Endpoint(heard)
        self._server: Any = None

    def start(self) -> None:
        """Begin to hear as soon as the broker answers; waits for nothing."""
        threading.Thread(target=self._serve, name="acstor-bus-server", daemon=True).start()

    def stop(self) -> None:
        """Hear no more."""
        if self._server is not None:
            self._server.stop()

    def _serve(self) -> None:
        transport = oslo_messaging.get_rpc_transport(self._conf)
        target = oslo_messaging.Target(
            exchange=decision_api.EXCHANGE, topic=trace_message.TOPIC, server=socket.gethostname()
        )
        server = oslo_messaging.get_rpc_server(
            transport, target, [self._endpoint], executor="threading"
        )
        server.start()
        self._server = server
        LOG.info("listening for requests and boot traces")
