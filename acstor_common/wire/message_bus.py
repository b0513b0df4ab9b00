# SPDX-License-Identifier: Apache-2.0
"""Connections to the message bus, which survive a lost broker and malformed messages."""

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import oslo_messaging
from oslo_config import cfg
from oslo_messaging import opts as messaging_opts
from oslo_messaging.rpc import server as rpc_server

from acstor_common import errors
from acstor_common.model import addresses
from acstor_common.model import clocks
from acstor_common.service import tracing
from acstor_common.util import log_limit
from acstor_common.util import log_once
from acstor_common.util import supervision
from acstor_common.wire import decision_messages

LOG = logging.getLogger(__name__)

RETRY_S = 1.0
STOP_WAIT_S = 5.0  # longest wait for the broker on process exit
WARNINGS = 30
WARNINGS_S = 60.0  # at most WARNINGS warnings of bad messages in this time
REPLY_S = 0
"""Time for which a server repeats a reply whose queue does not exist; each repetition holds a
thread, and a message can name any queue. The queue of a caller that waits exists."""
THREADS, HOST_THREADS = 16, 4
"""Threads of a service and of a compute host's process that handle messages, per server; the pool
starts all of them and ends none."""
SAME_OPTIONS = (
    "All services that use this broker need the same rabbit_quorum_queue and amqp_durable_queues "
    "in [oslo_messaging_rabbit]"
)
WOKEN = "woken"  # method without effect, which a server sends to itself to wake up

Handler = Callable[[Any], Any]
"""Handler of a message's unvalidated payload; returns the reply, runs in a thread.

Errors are logged, and the reply is None."""


def open_transport(
    conf: cfg.ConfigOpts,
    get: Callable[[cfg.ConfigOpts], Any] = oslo_messaging.get_rpc_transport,
    threads: int = THREADS,
) -> Any:
    """Return an unconnected transport of the global ``conf``, the only one for oslo.messaging.

    :raises errors.Unusable: no broker that oslo.messaging knows, or it lacks an option
    """
    oslo_messaging.set_transport_defaults(decision_messages.EXCHANGE)
    _set_defaults(conf, threads)
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_limit)
    try:
        return get(conf)
    except (oslo_messaging.MessagingException, ValueError) as e:
        raise errors.Unusable("[DEFAULT] transport_url", str(e)) from e


def open_global_transport(
    files: Sequence[str], folders: Sequence[str]
) -> oslo_messaging.transport.Transport:
    """Load files of a compute host's process, and return their :func:`open_transport`."""
    args = [part for file in files for part in ("--config-file", file)]
    args += [part for folder in folders for part in ("--config-dir", folder)]
    cfg.CONF(args, project="acstor", default_config_files=[], default_config_dirs=[])
    return open_transport(cfg.CONF, threads=HOST_THREADS)


def _set_defaults(conf: cfg.ConfigOpts, threads: int) -> None:
    """Set defaults before oslo.messaging registers these options, or raise Unusable."""
    of_group = dict(messaging_opts.list_opts())
    for group, name, value in (
        (None, "executor_thread_pool_size", threads),
        ("oslo_messaging_rabbit", "kombu_missing_consumer_retry_timeout", REPLY_S),
    ):
        options = {option.dest: option for option in of_group.get(group, ())}
        if name not in options:
            where = f"[{group or 'DEFAULT'}] {name}"
            raise errors.Unusable("the installed oslo.messaging", f"it has no option {where}")
        conf.register_opt(options[name], group)
        conf.set_default(name, value, group)


def broker_of(transport: Any) -> str:
    """Return a transport's hosts, user and option, for operators."""
    hosts = [
        addresses.with_port(host.hostname, host.port)
        + (f" as {host.username}" if host.username else "")
        for host in oslo_messaging.TransportURL.parse(transport.conf).hosts
        if host.hostname
    ]
    return f"{', '.join(hosts) or 'no host'}, of [DEFAULT] transport_url"


def why_unreachable(error: Exception, transport: Any) -> str:
    """Return a broker's error and address in one line, and the remedy if it is known."""
    text = str(error).partition("\n")[0] or type(error).__name__
    return f"{text} ({broker_of(transport)}){_remedy(text)}"


def _remedy(text: str) -> str:
    """Return the remedy for an error, a sentence after it; empty if none is known."""
    return f". {SAME_OPTIONS}" if "PRECONDITION_FAILED" in text else ""


class BusServer:
    """A running RPC server; created by :func:`serve`."""

    def __init__(self, transport: Any, target: Any, server: Any) -> None:
        self._transport, self._target, self._server = transport, target, server

    def close(self) -> None:
        """Stop listening, finish current messages, and disconnect.  May block.

        An idle server on RabbitMQ checks each 5 s whether to stop, and after a message: send one.
        """
        target = self._target(version=decision_messages.VERSION)
        client = oslo_messaging.get_rpc_client(self._transport, target, retry=0)
        try:
            client.cast({}, WOKEN)
        except Exception as e:  # also errors of kombu
            LOG.debug("%s was not woken to stop: %s", self._target, e)
        self._server.stop()
        self._server.wait()


def serve(
    transport: Any,
    target: Any,
    endpoint: "Endpoint",
    stopping: threading.Event,
    retry_s: float = RETRY_S,
) -> BusServer | None:
    """Start an RPC server when the broker is available; blocks; None if stopped before."""
    server = start(
        lambda: oslo_messaging.get_rpc_server(
            transport, target, [endpoint], executor="threading", server_cls=_server
        ),
        target.topic,
        stopping,
        broker_of(transport),
        retry_s,
    )
    return None if server is None else BusServer(transport, target, server)


class _Dispatcher(oslo_messaging.RPCDispatcher):  # type: ignore[misc]  # it has no type hints
    """Without the sender's timeout, whose thread never ends if the method does not exist."""

    def dispatch(self, incoming: Any) -> Any:
        incoming.client_timeout = None
        return super().dispatch(incoming)


def _server(transport: Any, target: Any, dispatcher: Any, executor: str) -> Any:
    bounded = _Dispatcher(dispatcher.endpoints, dispatcher.serializer)
    return rpc_server.RPCServer(transport, target, bounded, executor)


def close_in_background(
    work: Callable[[], None], wait_s: float = STOP_WAIT_S
) -> Callable[[], None]:
    """Run ``work`` in a thread; return a function that waits for it, ``wait_s`` at most."""
    last = supervision.start_once("bus-closer", work)
    return functools.partial(last.join, wait_s)


def start(
    make: Callable[[], Any],
    topic: str,
    stopping: threading.Event,
    broker: str = "",
    retry_s: float = RETRY_S,
) -> Any:
    """Start a server once the broker accepts it; log each error once; None if stopped before."""
    fault, where = log_once.LogOnce(LOG), f" ({broker})" if broker else ""
    while not stopping.is_set():
        try:
            server = make()
            server.start()  # waits for the broker; reconnects by itself
        except Exception as e:  # also errors of kombu
            why = f"{e}{where}{_remedy(str(e))}"
            fault.log_warning(f"cannot listen to {topic} on the message bus yet: {why}")
            stopping.wait(retry_s)
        else:
            return server
    return None


class ThrottledWarnings:
    """Logs rejected messages, at most WARNINGS lines each WARNINGS_S."""

    def __init__(self, clock: clocks.Clock, level: int = logging.WARNING) -> None:
        self._clock, self._level = clock, level
        self._limit = log_limit.LogLimit(WARNINGS_S, WARNINGS)

    def log_line(self, text: str, *words: object) -> None:
        """Log a line unless the limit is reached."""
        if self.take_line():
            LOG.log(self._level, text, *words)

    def take_line(self) -> bool:
        """Count a line; return whether it may be logged."""
        suppressed = self._limit.take_line(None, self._clock.monotonic())
        if suppressed:
            LOG.warning("%d more messages were ignored", suppressed)
        return suppressed is not None


class _Limit(logging.Filter):
    """Limits oslo.messaging's tracebacks of malformed messages."""

    def __init__(self) -> None:
        super().__init__()
        self._warnings = ThrottledWarnings(time)

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno < logging.WARNING or self._warnings.take_line()


_LOGGERS = (
    "oslo_messaging.rpc.server",
    "oslo_messaging._drivers.amqpdriver",
    "oslo.messaging._drivers.impl_rabbit",  # its name in oslo.log
)
_limit = _Limit()


@contextlib.contextmanager
def traced_message(context: object, method: str) -> Iterator[None]:
    """Handle a message in the block, within the trace whose headers its context has."""
    with tracing.continue_trace(context), tracing.Span("acstor_message", method=method):
        yield


class Endpoint:
    """Endpoint of oslo.messaging with one method for each handler."""

    target = oslo_messaging.Target(version=decision_messages.VERSION)

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._warnings = ThrottledWarnings(time)
        for method, handler in handlers.items():
            setattr(self, method, self._safely(method, handler))

    def woken(self, _context: object) -> None:
        """Do nothing: the message itself wakes the server."""

    def _safely(self, method: str, handler: Handler) -> Callable[..., Any]:
        def handle(context: object, payload: object = None) -> Any:
            try:
                with traced_message(context, method):
                    return handler(payload)
            except (errors.AcstorError, ValueError, OSError) as e:
                self._warnings.log_line("message %s is ignored: %s", method, e)
                return None

        return handle
