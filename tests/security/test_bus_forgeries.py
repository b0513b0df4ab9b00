# SPDX-License-Identifier: Apache-2.0
"""An attacker with publish access to the broker: effects on agents and on the listener.

The test acts as the decision service: it has the keys of a cloud, and a stranger's.  Two real
agents receive its messages over a real broker and exchange chunks.

"""

import contextlib
import json
import pathlib
import queue
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import oslo_messaging
import pytest
from oslo_config import cfg

from acstor_common.identity import signing
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.wire import decision_messages
from acstor_common.wire import message_bus
from acstor_common.wire import signed_messages
from acstor_common.wire import trace_message
from acstor_glance.boot import trace_store
from acstor_glance.client import trust_store
from acstor_glance.controller import bus_server
from acstor_glance.controller import message_verifier
from tests.fakes import cloud_keys
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local
from tests.lab import tuned
from tests.lab.openstack import rabbitmq as rabbitmq_lab

pytestmark = hosts.needs_fuse

WAIT_S = 30.0
NAMES = ("h1", "h2")
DATA = local.random_bytes(2 * geometry.MIB, seed=3)


class Bus:
    """The broker for any client with its password, who may publish and receive all messages."""

    def __init__(self, folder: pathlib.Path, rabbit: rabbitmq_lab.RabbitMQ) -> None:
        self.rabbit = rabbit
        path = folder / "publisher.conf"
        path.write_text(f"[DEFAULT]\ntransport_url = {rabbit.url}\n")
        cfg.CONF(["--config-file", str(path)], project="acstor")
        self.transport = message_bus.open_transport(cfg.CONF)

    def cast(self, topic: str, method: str, payload: Any, **to: Any) -> None:
        if isinstance(payload, msgspec.Struct):
            payload = decision_messages.encode(payload)
        target = oslo_messaging.Target(
            topic=topic,
            exchange=decision_messages.EXCHANGE,
            version=decision_messages.VERSION,
            **to,
        )
        client = oslo_messaging.get_rpc_client(self.transport, target, retry=3)
        client.cast({}, method, payload=payload)

    def table(self, payload: Any) -> None:
        self.cast(
            decision_messages.AGENT_TOPIC, decision_messages.RING_PUBLISHED, payload, fanout=True
        )

    def task(self, payload: Any) -> None:
        self.cast(
            decision_messages.AGENT_TOPIC, decision_messages.IMAGE_TASK_GIVEN, payload, fanout=True
        )

    def wait_subscribed(self, *names: str) -> None:
        """Wait until these hosts receive broadcast messages."""
        wanted = {f"{decision_messages.AGENT_TOPIC}.{name}" for name in names}
        hosts.wait_until(
            lambda: wanted <= self.rabbit.queues_with_consumers(), "agents that listen", WAIT_S
        )

    def close(self) -> None:
        self.transport.cleanup()
        cfg.CONF.reset()


@pytest.fixture
def bus(tmp_path: pathlib.Path, rabbitmq: rabbitmq_lab.RabbitMQ) -> Iterator[Bus]:
    made = Bus(tmp_path, rabbitmq)
    yield made
    made.close()


@pytest.fixture
def keys() -> cloud_keys.CloudKeys:
    return cloud_keys.CloudKeys()


@pytest.fixture
def image_id(images: local.ImageFolder) -> ids.ImageId:
    return images.add(DATA)


class Cloud:
    """Two agents and the keys that they trust."""

    def __init__(self, keys: cloud_keys.CloudKeys, running: dict[str, agents.Agent], ports: Any):
        self.keys, self.running, self._ports = keys, running, ports

    def ring(self, epoch: int) -> hash_ring.Ring:
        entries = (
            hash_ring.RingHost(name, f"{local.LOOPBACK}:{port}", 100)
            for name, port in self._ports.items()
        )
        return hash_ring.Ring(epoch, tuple(entries))

    def epochs(self) -> set[int]:
        return {agent.status()["ring"]["epoch"] for agent in self.running.values()}

    def wait_epoch(self, epoch: int) -> None:
        hosts.wait_until(lambda: self.epochs() == {epoch}, f"epoch {epoch}", WAIT_S)

    def wait_logged(self, what: str) -> None:
        """Wait until every agent has logged a text."""
        hosts.wait_until(
            lambda: all(what in agent.log() for agent in self.running.values()), what, WAIT_S
        )


@pytest.fixture
def cloud(
    tmp_path: pathlib.Path, images: local.ImageFolder, bus: Bus, keys: cloud_keys.CloudKeys
) -> Iterator[Cloud]:
    ports = {name: local.unused_port() for name in NAMES}
    sections = {
        "DEFAULT": {"transport_url": bus.rabbit.url},
        "oslo_messaging_rabbit": {"rabbit_retry_interval": 1, "rabbit_retry_backoff": 0},
    }
    often = {tuned.COLLECTION_S: 0.5}
    options = {"traffic_interfaces": "lo", "link_mbit": 1000}
    with contextlib.ExitStack() as stack:
        running = {}
        for name, port in ports.items():
            folder = tmp_path / name
            keys.give(folder / "agent" / "state", name)
            made = local.agent(
                folder,
                images,
                name=name,
                peer_port=port,
                sections=sections,
                constants=often,
                **options,
            )
            running[name] = stack.enter_context(made)
            stack.enter_context(hosts.bounded(running[name], 120.0))
        for agent in running.values():
            agent.wait_ready()
        bus.wait_subscribed(*NAMES)
        yield Cloud(keys, running, ports)


def exchanged(cloud: Cloud, image_id: ids.ImageId) -> int:
    """Read an image on both hosts; return the bytes that came from the other host."""
    for agent in cloud.running.values():
        assert agent.image_path(image_id).read_bytes() == DATA
    fetched = [agent.status()["fetched"] for agent in cloud.running.values()]
    return sum(one["home"]["bytes"] + one["peer"]["bytes"] for one in fetched)


def test_forged_ring_tables_are_refused_and_logged(cloud, bus, image_id):
    stranger = cloud_keys.CloudKeys()
    bus.table(cloud.keys.table(cloud.ring(5)))
    cloud.wait_epoch(5)
    signed, alone = cloud.keys.table(cloud.ring(6)), hash_ring.Ring(6, cloud.ring(6).hosts[:1])
    huge = json.loads(hash_ring.encode(cloud.ring(6))) | {"epoch": (1 << 63) - 1}
    for forged, said in (
        ({"epoch": (1 << 63) - 1, "table": json.dumps(huge)}, "broke the protocol: Expected `int`"),
        ({"epoch": 1 << 53, "table": json.dumps(huge)}, "broke the protocol: Expected `int`"),
        (
            decision_messages.RingTable(6, hash_ring.encode(alone).decode()),
            "a signature (table) is rejected",
        ),
        (stranger.table(alone), "none of the trusted keys made it"),
        (
            msgspec.structs.replace(signed, table=hash_ring.encode(alone).decode()),
            "none of the trusted keys",
        ),
        (cloud.keys.table(cloud.ring(7), reported=8), "v-node table 8 is rejected"),
        (cloud.keys.table(cloud.ring(6 + 1_000_000)), "epoch 1000006 is too high"),
        (cloud.keys.table(cloud.ring(4)), "epoch 4 is not higher than 5"),
    ):
        bus.table(forged)
        cloud.wait_logged(said)
        assert cloud.epochs() == {5}
    assert exchanged(cloud, image_id) > 0
    bus.table(signed)
    cloud.wait_epoch(6)


def test_poisoned_stored_ring_table_is_dropped_and_replaced(cloud, bus):
    bus.table(cloud.keys.table(cloud.ring(5)))
    cloud.wait_epoch(5)
    agent = cloud.running["h1"]
    kept = agent.folder / "state" / "ring.json"
    samples: queue.Queue[decision_messages.Signed] = queue.Queue()
    for poison in (
        msgspec.json.encode(cloud_keys.CloudKeys().table(cloud.ring(6))),
        hash_ring.encode(cloud.ring((1 << 53) - 1)),
    ):
        agent.stop()
        assert msgspec.json.decode(kept.read_bytes())["epoch"] == 5
        kept.write_bytes(poison)
        agent.start()
        agent.wait_ready()
        assert agent.status()["ring"]["epoch"] == 0
        with hearing(bus, samples):
            reported = next_sample(samples, cloud.keys, "h1", 0)
        assert reported.ring_epoch == 0  # so the service sends the current one
        bus.wait_subscribed("h1")
        bus.table(cloud.keys.table(cloud.ring(5)))
        cloud.wait_epoch(5)
    assert agent.log().count("dropping the stored table") == 2


@contextlib.contextmanager
def hearing(bus: Bus, samples: "queue.Queue[decision_messages.Signed]") -> Iterator[None]:
    """Receive samples as the decision service does."""

    def received(payload: object) -> None:
        samples.put(decision_messages.decode(payload, decision_messages.Signed))

    endpoint = message_bus.Endpoint({decision_messages.SAMPLE_COLLECTED: received})
    target = oslo_messaging.Target(topic=decision_messages.TOPIC, server="test")
    server = oslo_messaging.get_rpc_server(bus.transport, target, [endpoint])
    server.start()
    try:
        yield
    finally:
        server.stop()
        server.wait()


def next_sample(
    samples: "queue.Queue[decision_messages.Signed]",
    keys: cloud_keys.CloudKeys,
    host: str,
    epoch: int,
) -> decision_messages.Sample:
    """Return a host's next sample with an epoch; each proves its sender."""
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        certificate, sample = signed_messages.verify_from_host(
            samples.get(timeout=WAIT_S),
            signing.SAMPLE,
            keys.authority.certificate_pem,
            decision_messages.Sample,
        )
        assert certificate.host == sample.host
        if (sample.host, sample.ring_epoch) == (host, epoch):
            return sample
    pytest.fail(f"no sample of {host} shows epoch {epoch}")


def test_forged_tasks_are_ignored_and_a_valid_one_runs_once(cloud, bus, image_id):
    task = decision_messages.ImageTask(
        request=1, kind=decision_messages.TaskKind.PRE_SEED, image_id=image_id
    )
    given, h1 = cloud.keys.task(task), cloud.running["h1"]
    for forged, said in (
        (
            decision_messages.encode(task),
            "broke the protocol: Object missing required field `payload`",
        ),
        (cloud_keys.CloudKeys().task(task), "a signature (task) is rejected"),
        (cloud.keys.task(task, purpose=signing.TABLE), "a signature (task) is rejected"),
        (cloud.keys.task(task, "h3"), "it is for other hosts"),
        (
            cloud.keys.task(task, given_s=time.time() - 3600),
            "it was sent 3600 s ago",
        ),
    ):
        bus.task(forged)
        cloud.wait_logged(said)
    assert "received the task pre_seed" not in h1.log()
    bus.task(given)
    cloud.wait_logged("received the task pre_seed")
    bus.task(given)
    cloud.wait_logged("it was accepted before")
    assert h1.log().count("received the task pre_seed") == 1


@pytest.mark.expect_log("message boot_traced is ignored: ")
def test_unproven_traces_are_refused(bus, keys, tmp_path, watched_log):
    trust = trust_store.parse_trust(keys.authority.certificate_pem, keys.signers, {"h3": 1 << 40})
    checks, store = (
        message_verifier.MessageVerifier(),
        trace_store.TraceStore(tmp_path),
    )
    done: queue.Queue[int] = queue.Queue()
    server = bus_server.BusServer(
        cfg.CONF,
        {
            trace_message.BOOT_TRACED: lambda sent: done.put(
                store.add_trace(checks.verify_trace(sent, trust))
            )
        },
    )
    server.start()
    topic = trace_message.TOPIC
    hosts.wait_until(lambda: topic in bus.rabbit.queues_with_consumers(), "a listener", WAIT_S)
    image = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"

    def trace(host: str) -> trace_message.BootTrace:
        return trace_message.BootTrace(
            host=host,
            image_id=image,
            size_bytes=1 << 20,
            chunk_bytes=65536,
            trace=(3, 1),
            recorded_s=time.time(),
        )

    def sent(host: str, by: Any) -> decision_messages.Signed:
        return signed_messages.sign_payload(trace(host), signing.TRACE, by.key, by.certificate)

    try:
        for forged in (
            decision_messages.encode(trace("h1")),
            sent("h1", cloud_keys.CloudKeys().host("h1")),
            sent("h1", keys.host("h2")),
            sent("h3", keys.host("h3")),
            sent("h2", keys.host("h2")),
        ):
            bus.cast(topic, trace_message.BOOT_TRACED, forged)
        assert done.get(timeout=WAIT_S) == 1
        assert [one.host for one in store.list_traces(ids.parse_image_id(image))] == ["h2"]
    finally:
        server.stop()
    assert len(watched_log.messages) == 4
