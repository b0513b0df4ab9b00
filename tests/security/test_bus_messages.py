# SPDX-License-Identifier: Apache-2.0
"""Messages over a real broker that no client of oslo.messaging would send.

They must not fill a log, take threads, or end a server.

"""

import logging
import pathlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import kombu
import oslo_messaging
import pytest
from oslo_config import cfg

from acstor_common.wire import decision_messages
from acstor_common.wire import message_bus
from tests.fakes import hosts
from tests.lab.openstack import rabbitmq as rabbitmq_lab

TOPIC, SERVER = "lighthouses", "h1"
WAIT_S = 30.0
COPIES = 300


class Lighthouse:
    """A server with two methods; ``lit`` are the payloads of one."""

    def __init__(self, folder: pathlib.Path, url: str) -> None:
        path = folder / "bus.conf"
        path.write_text(f"[DEFAULT]\ntransport_url = {url}\nexecutor_thread_pool_size = 4\n")
        cfg.CONF(["--config-file", str(path)], project="acstor")
        self.lit: list[Any] = []
        self.transport = message_bus.open_transport(cfg.CONF)
        handlers = {"lit": self.lit.append, "asked": lambda _payload: {"is_lit": True}}
        endpoint = message_bus.Endpoint(handlers)
        target = oslo_messaging.Target(topic=TOPIC, server=SERVER)
        served = message_bus.serve(self.transport, target, endpoint, threading.Event())
        assert served is not None
        self._served = served

    def light(self, payload: Any) -> None:
        target = oslo_messaging.Target(topic=TOPIC, version=decision_messages.VERSION)
        oslo_messaging.get_rpc_client(self.transport, target).cast({}, "lit", payload=payload)

    def close(self) -> None:
        self._served.close()
        self.transport.cleanup()
        cfg.CONF.reset()


@pytest.fixture
def lighthouse(
    tmp_path: pathlib.Path, rabbitmq: rabbitmq_lab.RabbitMQ
) -> Iterator[tuple[Lighthouse, kombu.Producer]]:
    made = Lighthouse(tmp_path, rabbitmq.url)
    with kombu.Connection(rabbitmq.url.replace("rabbit://", "amqp://")) as connection:
        yield made, kombu.Producer(connection.channel())
    made.close()


def call(**said: Any) -> dict[str, Any]:
    return {"method": "asked", "args": {"payload": 1}, "version": "1.0", **said}


MESSAGES: dict[str, list[Any]] = {
    "are no messages": ["", "text", 7, None, [], [[1, 2]], {"oslo.version": "9"}],
    "have an odd envelope": [
        {"oslo.version": "2.0", "oslo.message": "{" * 5000},
        {"oslo.version": "9.0", "oslo.message": "{}"},
    ],
    "name no method": [call(method=one) for one in (None, 5, "", "_safely", "target", "x" * 9999)],
    "have other arguments": [call(args=one) for one in (None, 5, [1], {"a": 1}, {"self": 1})],
    "are of no version": [call(version=one) for one in (None, 5, "", "9.0", [1])],
    "name a time to wait": [call(method="none", _timeout=1e6, _msg_id="1", _reply_q="none")],
    "name no queue for the answer": [
        call(_msg_id="1", _reply_q=f"none {number}") for number in range(COPIES)
    ],
}


@pytest.mark.allow_log("message.* ignored")  # also how many, of another test
@pytest.mark.parametrize("kind", MESSAGES)
def test_malformed_messages_cost_few_log_lines_and_threads(
    lighthouse: tuple[Lighthouse, kombu.Producer], caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    server, producer = lighthouse
    server.light(0)
    hosts.wait_until(lambda: server.lit == [0], "a message", WAIT_S)
    threads, said = threading.active_count(), MESSAGES[kind]
    for number in range(COPIES):
        producer.publish(said[number % len(said)], exchange="acstor", routing_key=TOPIC)
    server.light(1)
    began_s = time.monotonic()
    hosts.wait_until(lambda: server.lit == [0, 1], "the next message", WAIT_S)
    took_s = time.monotonic() - began_s
    lines = [one for one in caplog.records if one.levelno >= logging.WARNING]
    print(f"{COPIES} messages that {kind}: {took_s:.1f} s, {len(lines)} lines in the log")
    assert len(lines) <= 3 * message_bus.WARNINGS
    assert threading.active_count() <= threads + 8
