# SPDX-License-Identifier: Apache-2.0
"""Message bus endpoint: receives samples, sends v-node tables and tasks.

A send waits a few seconds at most: later samples show whether agents missed a table.
"""

import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

import msgspec
import oslo_messaging
from oslo_config import cfg

from acstor_common import errors
from acstor_common.identity import signing
from acstor_common.service import tracing
from acstor_common.util import concurrency_limit
from acstor_common.util import supervision
from acstor_common.wire import checkpoint_messages
from acstor_common.wire import decision_messages
from acstor_common.wire import message_bus
from acstor_common.wire import trace_message

LOG = logging.getLogger(__name__)

SEND_RETRIES = 1
CALLERS = 3  # threads of one API process that may wait for the broker

AcceptSample = Callable[[decision_messages.Signed], None]
Seal = Callable[[msgspec.Struct, str], decision_messages.Signed]
Methods = Mapping[str, Callable[[object], dict[str, Any]]]


class _Endpoint(message_bus.Endpoint):
    def __init__(
        self,
        accept_sample: AcceptSample,
        refused: dict[str, int],
        methods: Methods,
    ) -> None:
        super().__init__({decision_messages.SAMPLE_COLLECTED: self._take_sample})
        self._accept_sample = accept_sample
        self._refused = refused
        for name, answer in methods.items():
            setattr(self, name, _called(name, answer))

    def _take_sample(self, payload: object) -> None:
        try:
            self._accept_sample(decision_messages.decode(payload, decision_messages.Signed))
        except errors.RemoteProtocolError:
            self._refused["malformed"] += 1
            raise
        except errors.NotAuthenticated:
            self._refused["not_authentic"] += 1
            raise


def _called(name: str, answer: Callable[[object], dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    def call(context: object, payload: object = None) -> dict[str, Any]:
        with message_bus.traced_message(context, name):
            return answer(payload)

    return call


class AgentBus:
    """Receives samples and sends tables and tasks, with oslo.messaging's global configuration."""

    def __init__(self, conf: cfg.ConfigOpts, instance: str) -> None:
        self.refused = dict.fromkeys(("malformed", "not_authentic"), 0)
        self._transport = message_bus.open_transport(conf)
        self._target = oslo_messaging.Target(topic=decision_messages.TOPIC, server=instance)
        self._server: message_bus.BusServer | None = None
        self._stopping = threading.Event()

    def start_server(self, accept_sample: AcceptSample, methods: Methods) -> None:
        """Start to receive samples and calls of ``methods``, as soon as the broker is reachable."""
        endpoint = _Endpoint(accept_sample, self.refused, methods)
        supervision.start("rpc-listener", lambda: self._serve(endpoint), self._stopping)

    def stop_server(self) -> None:
        """Close the connection to the broker; waits a few seconds at most."""
        self._stopping.set()
        message_bus.close_in_background(self._close)()

    def publish_table(self, table: decision_messages.RingTable) -> bool:
        """Send a table to all agents; return whether the broker accepted it."""
        return self._send({"fanout": True}, table)

    def send_table(self, host: str, table: decision_messages.RingTable) -> bool:
        """Send a table to one agent; return whether the broker accepted it."""
        return self._send({"server": host}, table)

    def send_task(self, host: str, task: decision_messages.Signed) -> bool:
        """Send a signed task to one agent; return whether the broker accepted it."""
        return self._send({"server": host}, task, decision_messages.IMAGE_TASK_GIVEN)

    def _send(
        self,
        to: dict[str, Any],
        payload: msgspec.Struct,
        method: str = decision_messages.RING_PUBLISHED,
    ) -> bool:
        target = oslo_messaging.Target(topic=decision_messages.AGENT_TOPIC, **to)
        try:
            _cast(self._transport, target, method, payload)
        except BusUnreachable as e:
            LOG.warning("%s cannot be sent: %s", method, e)
            return False
        return True

    def _serve(self, endpoint: _Endpoint) -> None:
        self._server = message_bus.serve(self._transport, self._target, endpoint, self._stopping)

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._transport.cleanup()


@dataclasses.dataclass(eq=False)
class BusUnreachable(errors.AcstorError):
    """The message bus does not accept a message."""

    why: str
    text = "the message bus does not answer: {why}"


class TaskSender:
    """Sends tasks and requests of operators; connects at the first one."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        seal: Seal,  # signs a message for a purpose
        *,
        call_timeout_s: float = 10.0,  # a daemon waits for libvirt at most
        retries: int = SEND_RETRIES,
    ) -> None:
        self._conf, self._seal = conf, seal
        self._call_timeout_s, self._retries = call_timeout_s, retries
        self._transport: Any = None
        self._opening = threading.Lock()
        self._limit = concurrency_limit.ConcurrencyLimit("the message bus", CALLERS, time)

    def send_task(self, task: decision_messages.ImageTask, hosts: Iterable[str] | None) -> None:
        """Send a task to agents of ``hosts`` (None: all); BusUnreachable: some may have it."""
        every: list[tuple[dict[str, Any], tuple[str, ...]]] = (
            [({"fanout": True}, ())]
            if hosts is None
            else [({"server": host}, (host,)) for host in hosts]
        )
        for to, named in every:
            target = oslo_messaging.Target(topic=decision_messages.AGENT_TOPIC, **to)
            given = decision_messages.TaskForHosts(task=task, hosts=named, given_s=time.time())
            sealed = self._seal(given, signing.TASK)
            self._send(target, decision_messages.IMAGE_TASK_GIVEN, sealed)

    def request_preparation(self, wanted: decision_messages.ImageWanted, request: int) -> None:
        """Ask a Glance listener to prepare an image; BusUnreachable if it was not sent."""
        target = oslo_messaging.Target(topic=trace_message.TOPIC)
        asked = decision_messages.ImageWantedAt(wanted=wanted, request=request, given_s=time.time())
        self._send(target, decision_messages.IMAGE_WANTED, self._seal(asked, signing.IMAGE_WANTED))

    def request_checkpoint(
        self, instance_id: str, host: str, request: int
    ) -> decision_messages.Signed | None:
        """Ask a daemon for a checkpoint; return its unverified response, None without one.

        :raises BusUnreachable: the request was not sent
        :raises errors.RemoteProtocolError: the response is malformed
        """
        wanted = checkpoint_messages.CheckpointRequest(
            request=request, instance_id=instance_id, host=host, given_s=time.time()
        )
        target = oslo_messaging.Target(topic=checkpoint_messages.DAEMON_TOPIC, server=host)
        encoded = decision_messages.encode(self._seal(wanted, signing.CHECKPOINT_WANTED))
        client = _client(self._opened(), target, self._retries, timeout=self._call_timeout_s)
        try:
            with self._limit.hold_slot():
                context = tracing.trace_headers()
                reply = client.call(context, checkpoint_messages.CHECKPOINT_WANTED, payload=encoded)
        except oslo_messaging.MessagingTimeout:
            return None
        except Exception as e:  # see _cast
            raise BusUnreachable(str(e).partition("\n")[0]) from e
        return None if reply is None else decision_messages.decode(reply, decision_messages.Signed)

    def _send(self, target: oslo_messaging.Target, method: str, payload: msgspec.Struct) -> None:
        try:
            with self._limit.hold_slot():
                _cast(self._opened(), target, method, payload, self._retries)
        except concurrency_limit.LimitReached as e:
            raise BusUnreachable(str(e)) from e

    def _opened(self) -> oslo_messaging.Transport:
        with self._opening:
            if self._transport is None:
                try:
                    self._transport = message_bus.open_transport(self._conf)
                except errors.Unusable as e:
                    raise BusUnreachable(str(e).partition("\n")[0]) from e
        return self._transport


def _client(
    transport: oslo_messaging.Transport, target: oslo_messaging.Target, retries: int, **more: Any
) -> oslo_messaging.RPCClient:
    versioned = target(version=decision_messages.VERSION)
    return oslo_messaging.get_rpc_client(transport, versioned, retry=retries, **more)


def _cast(
    transport: oslo_messaging.Transport,
    target: oslo_messaging.Target,
    method: str,
    payload: msgspec.Struct,
    retries: int = SEND_RETRIES,
) -> None:
    client = _client(transport, target, retries)
    encoded = decision_messages.encode(payload)
    try:
        client.cast(tracing.trace_headers(), method, payload=encoded)
    except Exception as e:  # drivers raise errors of their own libraries, such as kombu's
        raise BusUnreachable(str(e).partition("\n")[0]) from e
