# SPDX-License-Identifier: Apache-2.0
"""Whoever may publish on the broker sends recorded samples again: whom that takes off the ring.

A real decision service hears them over a real broker; the test is its hosts.
"""

import pathlib
import time
from collections.abc import Iterator
from typing import Any

import oslo_messaging
import pytest
from oslo_config import cfg

from acstor_common import decision_api
from acstor_common import message_bus
from acstor_common import ring
from acstor_common import sealed
from acstor_common import signing
from acstor_decision import service
from tests.fakes import decision_databases
from tests.fakes import hosts
from tests.lab import decision
from tests.lab import tuned
from tests.lab.openstack import rabbitmq as rabbitmq_lab

WAIT_S = 30.0
COLLECTION_S = 1.0
DEAD_AFTER = 5
ATTACK_COLLECTIONS = DEAD_AFTER + 3
COPIES = 2 * service.WAITING_OF_A_HOST
NAMES = ("h1", "h2", "h3")


class Sender:
    """One host: an identity that sends samples."""

    def __init__(self, instance: decision.Instance, folder: pathlib.Path, name: str) -> None:
        decision.manage(instance.config_file, "authority", "issue", name, "--out", str(folder))
        self.name, self.number, self.started_s = name, 0, time.time() - 1.0
        self._identity = [(folder / file).read_bytes() for file in ("key.pem", "cert.pem")]

    def next(self, **fields: Any) -> dict[str, Any]:
        """Return the next sample as it is sent."""
        self.number += 1
        address = f"127.0.0.{self.name[1:]}:7201"
        own = {
            "address": address,
            "number": self.number,
            "started_s": self.started_s,
            "interval_s": COLLECTION_S,
        }
        sample = decision_databases.sample(self.name, time.time(), **own | fields)
        return decision_api.encode(sealed.seal(sample, signing.SAMPLE, *self._identity))


class Bus:
    """The broker, for who has its password."""

    def __init__(self, folder: pathlib.Path, url: str) -> None:
        path = folder / "publisher.conf"
        path.write_text(f"[DEFAULT]\ntransport_url = {url}\n")
        cfg.CONF(["--config-file", str(path)], project="acstor")
        self._transport = message_bus.open_transport(cfg.CONF)
        target = oslo_messaging.Target(
            topic=decision_api.TOPIC, exchange=decision_api.EXCHANGE, version=decision_api.VERSION
        )
        client = oslo_messaging.get_rpc_client(self._transport, target, retry=3, timeout=WAIT_S)
        self._client = client

    def send(self, payload: dict[str, Any]) -> None:
        to_all = self._client.prepare(fanout=True)
        to_all.cast({}, decision_api.SAMPLE_COLLECTED, payload=payload)

    def table(self) -> dict[str, str]:
        """Return the address of each host of the table in force."""
        told = decision_api.decode(self._client.call({}, "get_ring"), decision_api.RingTable)
        return {host.host: host.address for host in ring.decode(told.table.encode(), "").hosts}

    def close(self) -> None:
        self._transport.cleanup()
        cfg.CONF.reset()


@pytest.fixture
def instance(
    tmp_path: pathlib.Path, rabbitmq: rabbitmq_lab.RabbitMQ
) -> Iterator[decision.Instance]:
    made = decision.Instance(
        tmp_path,
        "one",
        rabbitmq.url,
        f"sqlite:///{tmp_path}/decision.sqlite",
        constants={tuned.COLLECTION_S: COLLECTION_S},
        dead_after=DEAD_AFTER,
        prove_addresses=True,
    )
    with made:
        hosts.wait_until(made.leads, "an instance that leads", WAIT_S)
        yield made


@pytest.fixture
def bus(tmp_path: pathlib.Path, rabbitmq: rabbitmq_lab.RabbitMQ) -> Iterator[Bus]:
    made = Bus(tmp_path, rabbitmq.url)
    yield made
    made.close()


def test_recorded_samples_that_are_sent_again_take_no_host_off_the_ring(tmp_path, instance, bus):
    senders = {name: Sender(instance, tmp_path / name, name) for name in (*NAMES, "h9")}
    recorded: list[dict[str, Any]] = []

    def joined() -> bool:
        for name in NAMES:
            sent = senders[name].next()
            recorded.extend([sent] if name == "h1" else [])
            bus.send(sent)
        time.sleep(COLLECTION_S)
        return len(bus.table()) == len(NAMES)

    hosts.wait_until(joined, "three hosts on the ring", WAIT_S)
    before = bus.table()
    for _ in range(ATTACK_COLLECTIONS):
        began = time.monotonic()
        for number in range(COPIES):
            bus.send(recorded[-1 - number % min(len(recorded), 8)])
        for name in NAMES:
            sent = senders[name].next()
            recorded.extend([sent] if name == "h1" else [])
            bus.send(sent)
        bus.send(senders["h9"].next(address=before["h1"]))
        time.sleep(max(0.0, COLLECTION_S - (time.monotonic() - began)))
    assert bus.table() == before
    assert "h9: sample 1 is refused: taken_address" in instance.log()
    assert "h1: sample 1 is refused: out_of_order" in instance.log()
    assert "h1: a sample of it is dropped" not in instance.log()
