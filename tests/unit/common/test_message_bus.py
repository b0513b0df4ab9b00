# SPDX-License-Identifier: Apache-2.0
"""Message bus transports and servers on kombu's in-memory broker."""

import threading
import time
from collections.abc import Iterator

import oslo_messaging
import pytest
from oslo_config import cfg
from oslo_messaging import opts as messaging_opts

from acstor_common import errors
from acstor_common.wire import message_bus
from tests.fakes import manual_clock

WAIT_S = 30.0


@pytest.fixture
def conf() -> Iterator[cfg.ConfigOpts]:
    cfg.CONF([], project="acstor", default_config_files=[])
    yield cfg.CONF
    cfg.CONF.reset()


@pytest.fixture
def transport(conf) -> Iterator[oslo_messaging.Transport]:
    made = message_bus.open_transport(conf, in_memory)
    yield made
    made.cleanup()


def in_memory(conf: cfg.ConfigOpts) -> oslo_messaging.Transport:
    return oslo_messaging.get_rpc_transport(conf, "kombu+memory:////")


class Refusing:
    """A server whose start a broker refuses a few times."""

    def __init__(self, server: object, refusals: list[Exception]) -> None:
        self._server, self._refusals = server, refusals

    def start(self) -> None:
        if self._refusals:
            raise self._refusals.pop(0)
        self._server.start()
        self.stop, self.wait = self._server.stop, self._server.wait


@pytest.mark.expect_log("cannot listen to lighthouses on the message bus yet: no broker")
@pytest.mark.expect_log("cannot listen to lighthouses on the message bus yet: odd")
def test_server_that_fails_to_start_is_retried_and_receives(transport, monkeypatch, watched_log):
    received = threading.Event()
    endpoint = message_bus.Endpoint({"lit": lambda _: received.set()})
    made = []
    refusals = [*map(oslo_messaging.MessageDeliveryFailure, 3 * ["no broker"]), RuntimeError("odd")]
    real = oslo_messaging.get_rpc_server

    def refusing_server(*args: object, **kwargs: object) -> Refusing:
        made.append(real(*args, **kwargs))
        return Refusing(made[-1], refusals)

    monkeypatch.setattr(oslo_messaging, "get_rpc_server", refusing_server)
    target = oslo_messaging.Target(topic="lighthouses", server="h1")
    served = message_bus.serve(transport, target, endpoint, threading.Event(), retry_s=0.01)
    assert served is not None
    assert len(made) == 5
    assert len(watched_log.messages) == 2, "each reason is logged once"
    try:
        client = oslo_messaging.get_rpc_client(transport, target)
        client.cast({}, "lit", payload=1)
        assert received.wait(WAIT_S)
    finally:
        served.close()


@pytest.mark.expect_log("message lit is ignored: dark")
def test_messages_received_before_close_are_processed(transport):
    received, seen = threading.Event(), []

    def see(payload: object) -> None:
        received.set()
        time.sleep(0.5)
        seen.append(payload)
        raise ValueError("dark")

    target = oslo_messaging.Target(topic="lamps", server="h1")
    endpoint = message_bus.Endpoint({"lit": see})
    served = message_bus.serve(transport, target, endpoint, threading.Event())
    assert served is not None
    oslo_messaging.get_rpc_client(transport, target).cast({}, "lit", payload=1)
    assert received.wait(WAIT_S)
    message_bus.close_in_background(served.close)()
    assert seen == [1]


def test_hanging_close_does_not_delay_exit():
    hangs = threading.Event()
    began = time.monotonic()
    message_bus.close_in_background(lambda: hangs.wait(WAIT_S), wait_s=0.1)()
    assert time.monotonic() - began < WAIT_S / 2
    hangs.set()


@pytest.mark.expect_log("cannot listen to lighthouses on the message bus yet: no broker")
def test_retries_end_when_the_service_stops():
    stopping = threading.Event()

    def make() -> None:
        stopping.set()
        raise OSError("no broker")

    assert message_bus.start(make, "lighthouses", stopping) is None


def test_unknown_transport_is_refused(conf):
    def pigeons(conf: cfg.ConfigOpts) -> oslo_messaging.Transport:
        return oslo_messaging.get_rpc_transport(conf, "pigeon://loft/")

    with pytest.raises(errors.Unusable, match="transport_url"):
        message_bus.open_transport(conf, pigeons)


@pytest.mark.parametrize(("written", "counts"), [("", message_bus.REPLY_S), ("7", 7)])
def test_reply_queue_timeout_is_short_unless_configured(tmp_path, written, counts):
    """RabbitMQ's driver also registers this option."""
    text = f"[oslo_messaging_rabbit]\nkombu_missing_consumer_retry_timeout = {written}\n"
    (tmp_path / "file").write_text(text if written else "")
    conf = cfg.ConfigOpts()
    conf([], project="acstor", default_config_files=[str(tmp_path / "file")])
    made = message_bus.open_transport(
        conf, lambda conf: oslo_messaging.get_rpc_transport(conf, "rabbit://127.0.0.1:1//")
    )
    assert made._driver.missing_destination_retry_timeout == counts
    made.cleanup()


@pytest.mark.parametrize(
    "group,name",
    [
        (None, "executor_thread_pool_size"),
        ("oslo_messaging_rabbit", "kombu_missing_consumer_retry_timeout"),
    ],
)
def test_missing_option_of_oslo_messaging_is_named(monkeypatch, group, name):
    found = messaging_opts.list_opts()
    without = [(of, [o for o in options if o.dest != name]) for of, options in found]
    monkeypatch.setattr(messaging_opts, "list_opts", lambda: without)
    with pytest.raises(errors.Unusable, match=rf"no option .{group or 'DEFAULT'}. {name}"):
        message_bus.open_transport(cfg.ConfigOpts())


@pytest.mark.parametrize("threads", [message_bus.THREADS, message_bus.HOST_THREADS])
def test_number_of_message_threads_is_bounded(conf, threads):
    """oslo.messaging's pool starts a thread per message up to its size and ends none."""
    transport = message_bus.open_transport(conf, in_memory, threads)
    served_by, all_came = set(), threading.Semaphore(0)

    def note(_payload: object) -> None:
        served_by.add(threading.get_ident())
        all_came.release()

    target = oslo_messaging.Target(topic="lamps", server="h1")
    served = message_bus.serve(
        transport, target, message_bus.Endpoint({"lit": note}), threading.Event()
    )
    assert served is not None
    try:
        client = oslo_messaging.get_rpc_client(transport, target)
        for _ in range(5 * threads):
            client.cast({}, "lit", payload=1)
        for _ in range(5 * threads):
            assert all_came.acquire(timeout=WAIT_S)
        assert len(served_by) <= threads
    finally:
        served.close()
        transport.cleanup()


@pytest.mark.expect_log("message lit is ignored: dark")
@pytest.mark.expect_log("970 more messages were ignored")
def test_malformed_messages_do_not_fill_the_log(watched_log):
    now_s = [0.0]

    def refuse(_payload: object) -> None:
        raise ValueError("dark")

    endpoint = message_bus.Endpoint({"lit": refuse})
    endpoint._warnings = message_bus.ThrottledWarnings(manual_clock.FunctionClock(lambda: now_s[0]))
    for _ in range(1000):
        endpoint.lit({}, 1)  # type: ignore[attr-defined]
    assert len(watched_log.messages) == message_bus.WARNINGS
    now_s[0] += message_bus.WARNINGS_S
    endpoint.lit({}, 1)  # type: ignore[attr-defined]
    assert len(watched_log.messages) == message_bus.WARNINGS + 2


def test_broker_is_shown_with_ipv6_brackets_and_without_its_password(conf, transport):
    conf.set_override("transport_url", "rabbit://acstor:p@ss:w@[fd00::1]:5672/")
    shown = "[fd00::1]:5672 as acstor, of [DEFAULT] transport_url"
    assert message_bus.broker_of(transport) == shown


def test_processes_of_compute_hosts_have_few_message_threads(tmp_path):
    file = tmp_path / "acstor.conf"
    file.write_text("[DEFAULT]\ntransport_url = kombu+memory:////\n")
    try:
        made = message_bus.open_global_transport([str(file)], [])
        assert made.conf.executor_thread_pool_size == message_bus.HOST_THREADS
        made.cleanup()
        file.write_text(file.read_text() + "executor_thread_pool_size = 9\n")
        made = message_bus.open_global_transport([str(file)], [])
        assert made.conf.executor_thread_pool_size == 9
        made.cleanup()
    finally:
        cfg.CONF.reset()
