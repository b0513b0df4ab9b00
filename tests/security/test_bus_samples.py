# SPDX-License-Identifier: Apache-2.0
"""A publisher on the broker replays recorded samples; no host may leave the ring for that.

A real decision service receives them over a real broker; the test acts as its hosts.

"""

import pathlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

from acstor_decision.core.membership import sample_inbox
from tests.fakes import hosts
from tests.fakes import sample_senders
from tests.lab import decision
from tests.lab.openstack import rabbitmq as rabbitmq_lab

WAIT_S = 30.0
COLLECTION_S = decision.COLLECTION_S
DEAD_AFTER = 5
ATTACK_COLLECTIONS = DEAD_AFTER + 3
COPIES = 2 * sample_inbox.WAITING_OF_A_HOST
NAMES = ("h1", "h2", "h3")
DATABASE = "decision.sqlite"


@pytest.fixture
def instance(
    tmp_path: pathlib.Path, rabbitmq: rabbitmq_lab.RabbitMQ
) -> Iterator[decision.Instance]:
    made = decision.Instance(
        tmp_path,
        "one",
        rabbitmq.url,
        f"sqlite:///{tmp_path / DATABASE}",
        dead_after_samples=DEAD_AFTER,
        verify_addresses=True,
    )
    with made:
        hosts.wait_until(made.leads, "an instance that leads", WAIT_S)
        yield made


@pytest.fixture
def bus(tmp_path: pathlib.Path, rabbitmq: rabbitmq_lab.RabbitMQ) -> Iterator[sample_senders.Bus]:
    made = sample_senders.Bus(tmp_path, rabbitmq.url)
    yield made
    made.close()


def test_replayed_samples_remove_no_host_from_the_ring(tmp_path, instance, bus):
    senders = {
        name: sample_senders.Sender(instance, tmp_path / name, name) for name in (*NAMES, "h9")
    }
    recorded: list[dict[str, Any]] = []
    database = tmp_path / DATABASE

    def joined() -> bool:
        for name in NAMES:
            sent = senders[name].next()
            recorded.extend([sent] if name == "h1" else [])
            bus.send(sent)
        time.sleep(COLLECTION_S)
        return any(len(table) == len(NAMES) for table in sample_senders.list_tables(database)[-1:])

    hosts.wait_until(joined, "three hosts on the ring", WAIT_S)
    before = sample_senders.list_tables(database)[-1]
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
    assert sample_senders.list_tables(database)[-1] == before
    assert "h9: sample 1 is refused: taken_address" in instance.log()
    assert "h1: sample 1 is refused: out_of_order" in instance.log()
    assert "h1: its sample is dropped" not in instance.log()
