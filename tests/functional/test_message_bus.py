# SPDX-License-Identifier: Apache-2.0
"""A real broker: refused logins, hangs, and disconnects at the end."""

import pathlib
import queue
import time
from collections.abc import Callable
from collections.abc import Iterator

import oslo_messaging
import pytest
from oslo_config import cfg

from acstor_agent.cloud import bus
from acstor_common.wire import decision_messages
from acstor_common.wire import message_bus
from acstor_common.wire import trace_message
from acstor_glance.controller import bus_server
from tests.fakes import faulty_proxy
from tests.lab import runs
from tests.lab.openstack import rabbitmq as rabbitmq_lab

WAIT_S = 60.0
IDLE_S = 5.0
"""From then on it polls every 4 s, and later every 5 s, for the request to stop."""


@pytest.fixture
def conf(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path, rabbitmq: rabbitmq_lab.RabbitMQ
) -> Iterator[cfg.ConfigOpts]:
    path = tmp_path / "acstor-glance.conf"
    url = rabbitmq.url.replace("guest:guest", request.param)
    path.write_text(f"[DEFAULT]\ntransport_url = {url}\n")
    cfg.CONF(["--config-file", str(path)], project="acstor")
    yield cfg.CONF
    cfg.CONF.reset()


@pytest.mark.parametrize("conf", ["guest:guest"], indirect=True)
def test_idle_listener_disconnects_from_the_broker_at_once_on_stop(
    conf: cfg.ConfigOpts, rabbitmq: rabbitmq_lab.RabbitMQ
) -> None:
    server = bus_server.BusServer(conf, {})
    server.start()
    runs.wait_for(lambda: server._server is not None, WAIT_S, "the server", rabbitmq.log)
    assert any(name.startswith(trace_message.TOPIC) for name in rabbitmq.queues_with_consumers())
    time.sleep(IDLE_S)
    began = time.monotonic()
    server.stop()()
    assert time.monotonic() - began < IDLE_S / 2
    assert not any(
        name.startswith(trace_message.TOPIC) for name in rabbitmq.queues_with_consumers()
    )


@pytest.mark.parametrize("conf", ["late:secret"], indirect=True)
@pytest.mark.expect_log("cannot listen to acstor-glance on the message bus yet: .*ACCESS_REFUSED")
@pytest.mark.allow_log("cannot listen to acstor-glance on the message bus yet: .*NOT_ALLOWED")
def test_refused_listener_receives_messages_once_its_user_exists(
    conf: cfg.ConfigOpts, rabbitmq: rabbitmq_lab.RabbitMQ, watched_log
) -> None:
    received: queue.Queue[object] = queue.Queue()
    server = bus_server.BusServer(conf, {decision_messages.IMAGE_WANTED: received.put})
    server.start()
    try:
        runs.wait_for(lambda: bool(watched_log.messages), WAIT_S, "the refusal", rabbitmq.log)
        rabbitmq.control("add_user", "late", "secret")
        rabbitmq.control("set_permissions", "-p", "/", "late", ".*", ".*", ".*")
        runs.wait_for(lambda: server._server is not None, WAIT_S, "the server", rabbitmq.log)
        transport = message_bus.open_transport(conf)
        target = oslo_messaging.Target(
            topic=trace_message.TOPIC,
            exchange=decision_messages.EXCHANGE,
            version=decision_messages.VERSION,
        )
        client = oslo_messaging.get_rpc_client(transport, target)
        client.cast({}, decision_messages.IMAGE_WANTED, payload={"image": "one"})
        assert received.get(timeout=WAIT_S) == {"image": "one"}
        transport.cleanup()
    finally:
        server.stop()()
        rabbitmq.control("delete_user", "late")


@pytest.mark.allow_log("cannot listen to acstor-glance on the message bus yet: ")
def test_listener_reconnects_to_a_broker_that_hung_or_refused(
    rabbitmq: rabbitmq_lab.RabbitMQ, tmp_path: pathlib.Path
) -> None:
    received: queue.Queue[object] = queue.Queue()
    target = oslo_messaging.Target(
        topic=trace_message.TOPIC,
        exchange=decision_messages.EXCHANGE,
        version=decision_messages.VERSION,
    )
    with faulty_proxy.before(rabbitmq.port) as proxy:
        path = tmp_path / "acstor-glance.conf"
        path.write_text(
            f"[DEFAULT]\ntransport_url = rabbit://guest:guest@{proxy.address}/\n"
            "[oslo_messaging_rabbit]\nheartbeat_timeout_threshold = 2\n"
        )
        cfg.CONF(["--config-file", str(path)], project="acstor")
        proxy.hang()
        server = bus_server.BusServer(cfg.CONF, {decision_messages.IMAGE_WANTED: received.put})
        transport = oslo_messaging.get_rpc_transport(cfg.CONF, rabbitmq.url)
        client = oslo_messaging.get_rpc_client(transport, target)

        def is_heard() -> bool:
            client.cast({}, decision_messages.IMAGE_WANTED, payload={"image": "one"})
            return not received.empty()

        try:
            server.start()
            for fault in (proxy.hang, proxy.hang, proxy.refuse):
                fault()
                time.sleep(IDLE_S)
                while not received.empty():
                    received.get()
                proxy.pass_on()
                runs.wait_for(is_heard, WAIT_S, f"a message after {fault}", rabbitmq.log)
        finally:
            proxy.pass_on()
            server.stop()()
            transport.cleanup()
            cfg.CONF.reset()


@pytest.mark.parametrize("conf", ["rotated:first"], indirect=True)
@pytest.mark.expect_log(r"the message bus is unreachable: .*ACCESS_REFUSED.* as rotated, of")
@pytest.mark.allow_log("the message bus is unreachable")
def test_sender_with_a_refused_password_resumes_once_it_is_valid(
    conf: cfg.ConfigOpts, rabbitmq: rabbitmq_lab.RabbitMQ
) -> None:
    reported: list[str] = [""]
    rabbitmq.control("add_user", "rotated", "first")
    sender = bus.Bus("h1", message_bus.open_transport(conf), reported.append)
    try:
        rabbitmq.control("set_permissions", "-p", "/", "rotated", ".*", ".*", ".*")
        _send_until(sender, lambda: sender.sent > 0, rabbitmq)
        rabbitmq.control("change_password", "rotated", "second")
        rabbitmq.control("close_all_connections", "of a test")
        _send_until(sender, lambda: "ACCESS_REFUSED" in reported[-1], rabbitmq)
        assert f"127.0.0.1:{rabbitmq.port} as rotated, of [DEFAULT] transport_url" in reported[-1]
        rabbitmq.control("change_password", "rotated", "first")
        sent = sender.sent
        _send_until(sender, lambda: sender.sent > sent, rabbitmq)
        assert reported[-1] == ""
    finally:
        sender.stop()
        rabbitmq.control("delete_user", "rotated")


def _send_until(
    sender: bus.Bus, is_so: Callable[[], bool], rabbitmq: rabbitmq_lab.RabbitMQ
) -> None:
    def send() -> bool:
        sender.cast_message("towers", "lit", {}, is_fanout=True)
        return is_so()

    runs.wait_for(send, WAIT_S, "the sender", rabbitmq.log)
