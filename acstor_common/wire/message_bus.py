# SPDX-License-Identifier: Apache-2.0
"""What the rooms' doors to the message bus share: how one is opened, and how it begins to hear.

A broker that is away, or a message that makes no sense, ends nothing.
"""

import functools
import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import oslo_messaging
from oslo_config import cfg
from oslo_messaging import opts as messaging_opts
from oslo_messaging.rpc import server as rpc_server

from acstor_common import errors
from acstor_common.util import log_once
from acstor_common.util import supervision
from acstor_common.wire import decision_messages

LOG = logging.getLogger(__name__)

AGAIN_AFTER_S = 1.0
STOP_WAIT_S = 5.0
"""So long may letting go of the broker keep a process from its end."""
WARNINGS = 30
WARNINGS_S = 60.0
"""So many lines in so many seconds say that messages are of no use."""
REPLY_S = 1
"""So long may an answer wait for the queue of who asked, and hold a thread: a message can name any
queue."""
WOKEN = "woken"
"""A message of this method means nothing; a server sends it to itself."""

Heard = Callable[[Any], Any]
"""Gets a message's payload, unchecked, in a thread, and returns what a caller is answered; what it
raises is logged, and then it is nothing."""


def open_transport(
    conf: cfg.ConfigOpts,
    get: Callable[[cfg.ConfigOpts], Any] = oslo_messaging.get_rpc_transport,
) -> Any:
    """Return the way to the broker that the configuration names; connects to nothing.

    :param conf: the global configuration: oslo.messaging works with no other
    :raises errors.Unusable: what it names is no broker that oslo.messaging knows, or the installed
        version has no option for REPLY_S
    """
    oslo_messaging.set_transport_defaults(decision_messages.EXCHANGE)
    _bound_replies(conf)
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_limit)
    try:
        return get(conf)
    except (oslo_messaging.MessagingException, ValueError) as e:
        raise errors.Unusable("[DEFAULT] transport_url", str(e)) from e


def _bound_replies(conf: cfg.ConfigOpts) -> None:
    """Make REPLY_S the default of the option for it, before the driver registers the same one.

    :raises errors.Unusable: this oslo.messaging has no such option
    """
    name, group = "kombu_missing_consumer_retry_timeout", "oslo_messaging_rabbit"
    options = {option.dest: option for option in dict(messaging_opts.list_opts()).get(group, ())}
    if name not in options:
        raise errors.Unusable("the installed oslo.messaging", f"it has no option [{group}] {name}")
    conf.register_opt(options[name], group)
    conf.set_default(name, REPLY_S, group)


def broker_of(transport: Any) -> str:
    """Return where a transport finds its broker, as whom, and by which option: for operators."""
    hosts = [
        f"{host.hostname}:{host.port}" + (f" as {host.username}" if host.username else "")
        for host in oslo_messaging.TransportURL.parse(transport.conf).hosts
        if host.hostname
    ]
    return f"{', '.join(hosts) or 'no host'}, of [DEFAULT] transport_url"


def why_unreachable(error: Exception, transport: Any) -> str:
    """Return in one line why a broker could not be used, and which it is."""
    said = str(error).partition("\n")[0] or type(error).__name__
    return f"{said} ({broker_of(transport)})"


class BusServer:
    """A server that hears what is sent to a target: :func:`serve` makes it."""

    def __init__(self, transport: Any, target: Any, server: Any) -> None:
        self._transport, self._target, self._server = transport, target, server

    def close(self) -> None:
        """Hear no more, see to what was heard, and let go of the broker.

        Waits for a broker that is away, so call it in a thread.

        A server that hears nothing looks only every 5 s whether it is to end (oslo.messaging, with
        RabbitMQ), and soon after each message: so it is sent one.
        """
        target = self._target(version=decision_messages.VERSION)
        client = oslo_messaging.get_rpc_client(self._transport, target, retry=0)
        try:
            client.cast({}, WOKEN)
        except Exception as e:  # drivers let errors of their own libraries through, kombu's for one
            LOG.debug("%s looks by itself whether it is to end: %s", self._target, e)
        self._server.stop()
        self._server.wait()


def serve(
    transport: Any, target: Any, endpoint: "Endpoint", stopping: threading.Event
) -> BusServer | None:
    """Begin to hear what is sent to a target, once the broker is there; return the server.

    It waits for the broker, so call it in a thread.

    :return: None if it was told to stop before
    """
    server = start(
        lambda: oslo_messaging.get_rpc_server(
            transport, target, [endpoint], executor="threading", server_cls=_server
        ),
        target.topic,
        stopping,
        broker_of(transport),
    )
    return None if server is None else BusServer(transport, target, server)


class _Dispatcher(oslo_messaging.RPCDispatcher):  # type: ignore[misc]  # it has no type hints
    """Calls methods of endpoints, whatever a message says of the time that its sender waits.

    For that oslo.messaging starts a thread, which never ends if there is no such method.
    """

    def dispatch(self, incoming: Any) -> Any:
        """Return what a method answers."""
        incoming.client_timeout = None
        return super().dispatch(incoming)


def _server(transport: Any, target: Any, dispatcher: Any, executor: str) -> Any:
    bounded = _Dispatcher(dispatcher.endpoints, dispatcher.serializer)
    return rpc_server.RPCServer(transport, target, bounded, executor)


def close_in_background(work: Callable[[], None]) -> Callable[[], None]:
    """Let go of a broker by ``work``, which may wait for it, beside the caller.

    :return: what waits for the end of it, for a few seconds at most
    """
    last = supervision.start_once("bus-closer", work)
    return functools.partial(last.join, STOP_WAIT_S)


def start(make: Callable[[], Any], topic: str, stopping: threading.Event, broker: str = "") -> Any:
    """Make a server and start it, again and again until the broker takes it; return it.

    It waits for the broker, so call it in a thread.  Each reason is logged once in a row.

    :param topic: what is listened to, for the log
    :param broker: see :func:`broker_of`
    :return: None if it was told to stop before
    """
    fault, where = log_once.LogOnce(LOG), f" ({broker})" if broker else ""
    while not stopping.is_set():
        try:
            server = make()
            server.start()  # waits for the broker, and looks for it again when it goes
        except Exception as e:  # drivers let errors of their own libraries through, kombu's for one
            fault.log_warning(f"cannot listen to {topic} on the message bus yet: {e}{where}")
            stopping.wait(AGAIN_AFTER_S)
        else:
            return server
    return None


class ThrottledWarnings:
    """Says that messages are of no use: WARNINGS lines a minute, so that nobody fills a log.

    :param clock: monotonic, in seconds
    :param level: of the lines that name a message
    """

    def __init__(self, clock: Callable[[], float], level: int = logging.WARNING) -> None:
        self._clock, self._since_s = clock, clock()
        self._level = level
        self._count = 0

    def log_line(self, text: str, *words: object) -> None:
        """Write a line, if there is one left in this minute."""
        if self.take_line():
            LOG.log(self._level, text, *words)

    def take_line(self) -> bool:
        """Take one of the lines of this minute; return whether there was one."""
        if self._clock() - self._since_s >= WARNINGS_S:
            if self._count > WARNINGS:
                left_out = self._count - WARNINGS
                LOG.warning("%d more messages were ignored", left_out)
            self._since_s, self._count = self._clock(), 0
        self._count += 1
        return self._count <= WARNINGS


class _Limit(logging.Filter):
    """Bounds what oslo.messaging logs, with a trace each, of messages that nobody can read."""

    def __init__(self) -> None:
        super().__init__()
        self._complaints = ThrottledWarnings(time.monotonic)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is written."""
        return record.levelno < logging.WARNING or self._complaints.take_line()


_LOGGERS = (
    "oslo_messaging.rpc.server",
    "oslo_messaging._drivers.amqpdriver",
    "oslo.messaging._drivers.impl_rabbit",  # as oslo.log calls it
)
_limit = _Limit()


class Endpoint:
    """Methods that others may call, as oslo.messaging wants them.

    :param heard: what to do with the payload, by method
    :param clock: monotonic, in seconds
    """

    target = oslo_messaging.Target(version=decision_messages.VERSION)

    def __init__(self, heard: Mapping[str, Heard], clock: Callable[[], float]) -> None:
        self._complaints = ThrottledWarnings(clock)
        for method, callback in heard.items():
            setattr(self, method, self._safely(method, callback))

    def woken(self, _context: object) -> None:
        """Do nothing: it is enough that a message came."""

    def _safely(self, method: str, callback: Heard) -> Callable[..., Any]:
        def hear(_context: object, payload: object = None) -> Any:
            try:
                return callback(payload)
            except (errors.AcstorError, ValueError, OSError) as e:
                self._complaints.log_line("message %s is of no use: %s", method, e)
                return None

        return hear
