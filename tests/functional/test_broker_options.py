# SPDX-License-Identifier: Apache-2.0
"""A real broker as clouds configure it: TLS, quorum queues, and services with other options."""

import pathlib
import queue
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import oslo_messaging
import pytest
from oslo_config import cfg

from acstor_common.wire import decision_messages
from acstor_common.wire import message_bus
from acstor_common.wire import trace_message
from acstor_glance.controller import bus_server
from acstor_glance.controller import notifications
from tests.lab import runs
from tests.lab.openstack import rabbitmq as rabbitmq_lab

WAIT_S = 60.0
VHOST = "clouds"
IMAGE_ID = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
QUORUM = {"rabbit_quorum_queue": True, "rabbit_transient_quorum_queue": True}

Configure = Callable[..., cfg.ConfigOpts]


@pytest.fixture
def configure(
    tmp_path: pathlib.Path, rabbitmq: rabbitmq_lab.RabbitMQ
) -> Iterator[Callable[..., cfg.ConfigOpts]]:
    """Return a function that makes a configuration with a new virtual host of the broker."""
    rabbitmq.control("add_vhost", VHOST)
    rabbitmq.control("set_permissions", "-p", VHOST, "guest", ".*", ".*", ".*")

    def make(authority: pathlib.Path | None = None, **options: object) -> cfg.ConfigOpts:
        port = rabbitmq.port if authority is None else rabbitmq.tls_port
        tls = {} if authority is None else {"ssl": True, "ssl_ca_file": authority}
        said = "".join(f"{name} = {value}\n" for name, value in {**tls, **options}.items())
        path = tmp_path / "acstor-glance.conf"
        path.write_text(
            f"[DEFAULT]\ntransport_url = rabbit://guest:guest@127.0.0.1:{port}/{VHOST}\n"
            f"[oslo_messaging_rabbit]\n{said}"
        )
        cfg.CONF(["--config-file", str(path)], project="acstor")
        return cfg.CONF

    yield make
    cfg.CONF.reset()
    rabbitmq.control("delete_vhost", VHOST)


def notify(conf: cfg.ConfigOpts) -> Any:
    """Send a notification of a new image as Glance does; return its transport."""
    oslo_messaging.set_transport_defaults(notifications.EXCHANGE)
    transport = oslo_messaging.get_notification_transport(conf)
    sender = oslo_messaging.Notifier(
        transport, "image.host", driver="messagingv2", topics=["notifications"]
    )
    sender.info({}, "image.activate", {"id": IMAGE_ID})
    return transport


def test_messages_pass_over_tls_and_quorum_queues(
    configure: Configure, rabbitmq: rabbitmq_lab.RabbitMQ
) -> None:
    conf = configure(rabbitmq.authority, **QUORUM)
    notified: queue.Queue[object] = queue.Queue()
    asked: queue.Queue[object] = queue.Queue()
    listener = notifications.NotificationListener(conf, lambda *said: notified.put(said))
    server = bus_server.BusServer(conf, {decision_messages.IMAGE_WANTED: asked.put})
    listener.start()
    server.start()
    try:
        started = (lambda: listener._listener is not None, lambda: server._server is not None)
        for is_started in started:
            runs.wait_for(is_started, WAIT_S, "the listeners", rabbitmq.log)
        notify(conf).cleanup()
        assert notified.get(timeout=WAIT_S) == ("image.activate", IMAGE_ID)
        transport = message_bus.open_transport(conf)
        target = oslo_messaging.Target(topic=trace_message.TOPIC, version=decision_messages.VERSION)
        client = oslo_messaging.get_rpc_client(transport, target)
        client.cast({}, decision_messages.IMAGE_WANTED, payload={"image": "one"})
        assert asked.get(timeout=WAIT_S) == {"image": "one"}
        transport.cleanup()
        listed = rabbitmq.control("list_queues", "-p", VHOST, "--no-table-headers", "name", "type")
        kinds = dict(row.split("\t") for row in listed.splitlines())
        assert kinds[notifications.POOL] == kinds[trace_message.TOPIC] == "quorum"
    finally:
        listener.stop()
        server.stop()()


@pytest.mark.expect_log(f"cannot listen to notifications.*{message_bus.SAME_OPTIONS[:40]}")
def test_listener_with_other_options_than_glance_says_which(
    configure: Configure, rabbitmq: rabbitmq_lab.RabbitMQ, watched_log: Any
) -> None:
    transport = notify(configure(**QUORUM))
    listener = notifications.NotificationListener(configure(), lambda *_said: None)
    listener.start()
    runs.wait_for(lambda: bool(watched_log.messages), WAIT_S, "the refusal", rabbitmq.log)
    listener.stop()
    transport.cleanup()
