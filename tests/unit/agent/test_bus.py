# SPDX-License-Identifier: Apache-2.0
"""The agent's bus on kombu's broker in memory; a real broker is in tests/functional."""

import contextlib
import pathlib
import queue
import threading
from collections.abc import Iterator

import amqp.exceptions
import oslo_messaging
import pytest
from oslo_config import cfg

from acstor_agent.cloud import bus
from acstor_common import errors

WAIT_S = 30.0


@pytest.fixture(autouse=True)
def own_global_conf() -> Iterator[None]:
    yield
    cfg.CONF.reset()


def configure(folder: pathlib.Path, url: str) -> list[str]:
    path = folder / "agent.conf"
    path.write_text(f"[DEFAULT]\n{url}\n")
    return [str(path)]


@pytest.fixture
def link(tmp_path: pathlib.Path) -> Iterator[bus.Bus]:
    url = "transport_url = kombu+memory:////"
    made = bus.open_bus("h1", configure(tmp_path, url), retry_s=0.01)
    yield made
    made.stop()


class Gate:
    """Replaces the broker: refuses messages, holds them back, or passes them on."""

    def __init__(self, link: bus.Bus, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed: queue.Queue[str] = queue.Queue()
        self.tried: queue.Queue[str] = queue.Queue()
        self.is_open = threading.Event()
        self.refusal: Exception | None = None
        monkeypatch.setattr(link, "_send", self.send)

    def send(self, message: bus._Message) -> None:
        self.tried.put(message.method)
        self.is_open.wait(WAIT_S)
        if self.refusal is not None:
            raise self.refusal
        self.passed.put(message.method)


def test_unknown_transport_is_refused(tmp_path):
    with pytest.raises(errors.Unusable, match="transport_url"):
        bus.open_bus("h1", configure(tmp_path, "transport_url = pigeon://loft/"))


def cast_until(received: queue.Queue[object], link: bus.Bus, payload: object, **how: bool) -> None:
    """Cast repeatedly: a listener that is not subscribed yet receives nothing."""
    for _ in range(int(WAIT_S / 0.1)):
        link.cast_message("towers", "lit", {"fires": payload}, **how)
        with contextlib.suppress(queue.Empty):
            while received.get(timeout=0.1) != {"fires": payload}:
                pass
            return
    pytest.fail(f"nobody heard {payload}")


def test_listener_receives_fanout_and_topic_messages(link):
    received: queue.Queue[object] = queue.Queue()
    link.subscribe("towers", {"lit": received.put})
    cast_until(received, link, 1)
    cast_until(received, link, 2, is_fanout=True)
    assert link.sent >= 2


@pytest.mark.expect_log("message lit is ignored: no fire")
def test_message_that_its_callback_rejects_is_logged_and_skipped(link):
    received: queue.Queue[object] = queue.Queue()

    def callback(payload: dict[str, object]) -> None:
        received.put(payload)
        if payload["fires"] == 0:
            raise ValueError("no fire")

    link.subscribe("towers", {"lit": callback})
    cast_until(received, link, 0)
    cast_until(received, link, 1)


def test_full_queue_drops_the_oldest_message(link, monkeypatch):
    gate = Gate(link, monkeypatch)
    link.cast_message("towers", "first", {})
    assert gate.tried.get(timeout=WAIT_S) == "first"  # the broker has it now
    for number in range(bus.QUEUE_LIMIT + 3):
        link.cast_message("towers", f"m{number}", {})
    assert link.dropped == 3
    gate.is_open.set()
    passed = [gate.passed.get(timeout=WAIT_S) for _ in range(bus.QUEUE_LIMIT + 1)]
    assert passed == ["first", *(f"m{number}" for number in range(3, bus.QUEUE_LIMIT + 3))]


@pytest.mark.expect_log(
    r"the message bus is unreachable: .*no broker \(no host, of .DEFAULT. transp"
)
@pytest.mark.parametrize(
    "refusal",
    [
        oslo_messaging.MessageDeliveryFailure("no broker"),
        amqp.exceptions.AccessRefused("no broker"),
        amqp.exceptions.NotAllowed("no broker"),
        RuntimeError("no broker"),
    ],
)
def test_unsent_message_is_sent_when_the_broker_is_back(link, monkeypatch, refusal):
    gate = Gate(link, monkeypatch)
    gate.refusal = refusal
    gate.is_open.set()
    link.cast_message("towers", "lit", {})
    for _ in range(3):
        assert gate.tried.get(timeout=WAIT_S) == "lit"
    gate.refusal = None
    assert gate.passed.get(timeout=WAIT_S) == "lit"
    assert link.dropped == 0
