# SPDX-License-Identifier: Apache-2.0
"""A host's link to the decision service, with controlled interfaces and bus."""

import pathlib
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import msgspec
import trio

from acstor_agent.cloud import decision_link
from acstor_agent.cloud import decision_receiver
from acstor_agent.cloud import message_signing
from acstor_agent.cloud import ring_store
from acstor_agent.cloud import traffic_meter
from acstor_agent.core.cloud import interface_traffic
from acstor_common import errors
from acstor_common.identity import identity_files
from acstor_common.identity import signing
from acstor_common.model import boot_timeline
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.wire import decision_messages
from acstor_common.wire import signed_messages
from tests.fakes import cloud_keys

COLLECTION_S = 0.5
KEYS = cloud_keys.CloudKeys()
CIDS = [ids.cid_of(b"%d" % n) for n in range(200)]


class Meter:
    """A network interface with settable counters."""

    def __init__(self) -> None:
        self.received = self.sent = 0
        self.at_s = 0.0
        self.failure: errors.Unusable | None = None

    def read_counters(self) -> traffic_meter.InterfaceSample:
        if self.failure:
            raise self.failure
        self.at_s += COLLECTION_S
        eth0 = interface_traffic.NetworkInterface(1, "eth0", "", 0, 0, self.received, self.sent)
        return traffic_meter.InterfaceSample(self.at_s, [eth0], 1000)


class Bus:
    """Records sent messages."""

    def __init__(self) -> None:
        self.samples: list[decision_messages.Sample] = []
        self.handlers: Mapping[str, Any] = {}
        self.listeners = 0

    def cast_message(self, topic: str, method: str, payload: Any, *, is_fanout: bool) -> None:
        assert (topic, method, is_fanout) == (
            decision_messages.TOPIC,
            decision_messages.SAMPLE_COLLECTED,
            True,
        )
        signed = decision_messages.decode(payload, decision_messages.Signed)
        ca = KEYS.authority.certificate_pem
        certificate, sample = signed_messages.verify_from_host(
            signed, signing.SAMPLE, ca, decision_messages.Sample
        )
        assert certificate.host == sample.host
        self.samples.append(sample)

    def subscribe(self, topic: str, handlers: Mapping[str, Any]) -> None:
        assert topic == decision_messages.AGENT_TOPIC
        self.handlers = handlers
        self.listeners += 1


class LinkedHost:
    """A link, and the messages it received."""

    def __init__(self, state_dir: pathlib.Path) -> None:
        self.meter, self.bus = Meter(), Bus()
        self.chunks = interface_traffic.TrafficBytes(0, 0)
        here = ids.HostId("h1")
        self.folder = state_dir / "identity"
        self.files = identity_files.IdentityFiles(here, identity_files.files_in(self.folder))
        identity_files.write(self.folder, KEYS.host("h1"))
        self.rings = ring_store.RingStore(state_dir / "ring.json", None, identity=self.files)
        self.rings.accept_table(hash_ring.Ring(3, ()), KEYS.table(hash_ring.Ring(3, ())))
        self.images: decision_link.Images = None
        self.boots: tuple[boot_timeline.Timeline, ...] = ()
        self.tasks: list[decision_messages.ImageTask] = []
        self.health = decision_messages.HostHealth(version="1.2.3", waiting=2, longest_wait_s=31.0)
        self.link = decision_link.DecisionLink(
            decision_link.HostAddress(here, "10.0.0.1:7201", "pod1/rack1"),
            message_bus=self.bus,
            meter=self.meter,
            sender=message_signing.MessageSigner(self.files),
            receiver=decision_receiver.DecisionReceiver(
                here, self.bus, self.files, self.rings, self
            ),
            rings=self.rings,
            report=self,
            collection_s=COLLECTION_S,
        )

    def queue_task(self, task: decision_messages.ImageTask) -> None:
        """Record a task."""
        self.tasks.append(task)

    def exchange_totals(self) -> decision_link.ExchangeTotals:
        """Return the test's exchange totals."""
        return decision_link.ExchangeTotals(self.chunks, 70, 100)

    def iter_cids(self) -> Iterator[ids.Cid]:
        """Yield the CIDs in the cache."""
        return iter(CIDS)

    async def changed_images(self) -> decision_link.Images:
        """Return the test's changed images."""
        return self.images

    def new_boots(self) -> tuple[boot_timeline.Timeline, ...]:
        """Return the test's new boots."""
        return self.boots

    def current_health(self) -> decision_messages.HostHealth:
        """Return the test's health."""
        return self.health

    async def deliver(self, method: str, payload: Any) -> None:
        """Receive a message from the bus."""
        if isinstance(payload, msgspec.Struct):
            payload = decision_messages.encode(payload)
        await trio.to_thread.run_sync(self.bus.handlers[method], payload)
