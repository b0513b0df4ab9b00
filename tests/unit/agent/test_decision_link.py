# SPDX-License-Identifier: Apache-2.0
"""Samples of a host whose interfaces and bus the test holds in its hands."""

from collections.abc import Mapping
from typing import Any

import pytest
import trio
import trio.testing

from acstor_agent.cloud import decision_link
from acstor_agent.cloud import traffic_meter
from acstor_agent.core import links
from acstor_common import decision_api
from acstor_common import errors
from acstor_common import ids
from acstor_common import ring
from acstor_common import sketch

COLLECTION_S = 1.0
CIDS = [ids.cid_of(b"%d" % n) for n in range(200)]


class Meter:
    """An interface whose counters the test moves."""

    def __init__(self) -> None:
        self.received = self.sent = 0
        self.at_s = 0.0
        self.failure: errors.Unusable | None = None

    def look(self) -> traffic_meter.Look:
        if self.failure:
            raise self.failure
        self.at_s += COLLECTION_S
        eth0 = links.Link(1, "eth0", "", 0, 0, self.received, self.sent)
        return traffic_meter.Look(self.at_s, [eth0], 1000)


class Bus:
    """Takes what is cast."""

    def __init__(self) -> None:
        self.samples: list[decision_api.Sample] = []
        self.heard: Mapping[str, Any] = {}

    def cast(self, topic: str, method: str, payload: Any, *, is_fanout: bool) -> None:
        assert (topic, method, is_fanout) == (
            decision_api.TOPIC,
            decision_api.SAMPLE_COLLECTED,
            True,
        )
        self.samples.append(decision_api.decode(payload, decision_api.Sample))

    def listen(self, topic: str, heard: Mapping[str, Any]) -> None:
        assert topic == decision_api.AGENT_TOPIC
        self.heard = heard


class Host:
    """A link, and what it is told."""

    def __init__(self) -> None:
        self.meter, self.bus = Meter(), Bus()
        self.chunks = links.Carried(0, 0)
        self.ring = ring.Ring(3, ())
        self.images: decision_link.Images = None
        self.tasks: list[decision_api.ImageTask] = []
        self.link = decision_link.DecisionLink(
            ids.HostId("h1"),
            "10.0.0.1:7201",
            "pod1/rack1",
            message_bus=self.bus,
            meter=self.meter,
            collection_s=COLLECTION_S,
            held=lambda: decision_link.Held(self.chunks, 70, 100),
            cids=lambda: iter(CIDS),
            epoch=lambda: self.ring.epoch,
            put_ring=self.put,
            images=self.news,
            take_task=self.tasks.append,
        )

    async def news(self) -> decision_link.Images:
        return self.images

    def put(self, new: ring.Ring, data: bytes) -> None:
        if new.epoch <= self.ring.epoch:
            raise ValueError("old")
        self.ring = new


@pytest.fixture
async def host(nursery: trio.Nursery) -> Host:
    made = Host()
    nursery.start_soon(made.link.run)
    await trio.sleep(COLLECTION_S / 2)
    return made


async def test_a_sample_says_what_was_carried_and_what_of_it_were_chunks(host):
    host.meter.received, host.meter.sent, host.chunks = 3000, 500, links.Carried(1000, 0)
    host.link.received(ids.HostId("h2"), 600)
    host.link.sent(ids.HostId("h2"), 7)
    host.link.received(ids.HostId("h3"), 400)
    await trio.sleep(COLLECTION_S)
    [sample] = host.bus.samples
    assert (sample.host, sample.address, sample.location) == ("h1", "10.0.0.1:7201", "pod1/rack1")
    assert (sample.number, sample.interval_s, sample.link_bytes_s) == (1, COLLECTION_S, 1000)
    assert sample.total == decision_api.Traffic(3000, 500)
    assert sample.chunks == decision_api.Traffic(1030, 20)
    assert (sample.cache_bytes, sample.cache_limit_bytes, sample.ring_epoch) == (70, 100, 3)
    assert sample.sketch == sketch.make(CIDS)
    assert sample.peers == {
        "h2": decision_api.Traffic(600, 7),
        "h3": decision_api.Traffic(400, 0),
    }


async def test_samples_are_numbered_and_each_counts_from_the_one_before(host):
    for received in (100, 100, 350):
        host.meter.received = received
        await trio.sleep(COLLECTION_S)
    samples = host.bus.samples
    assert [sample.number for sample in samples] == [1, 2, 3]
    assert [sample.total.received for sample in samples] == [100, 0, 250]
    assert len({(sample.session, sample.started_s) for sample in samples}) == 1
    assert samples[-1].peers == {}


@pytest.mark.expect_log("none of .* is there; the decision service hears nothing of this host")
async def test_without_an_interface_nothing_is_sent_and_then_it_goes_on(host):
    host.meter.failure = errors.Unusable("traffic_interfaces", "none of ['eth9'] is there")
    await trio.sleep(2 * COLLECTION_S)
    assert host.bus.samples == []
    host.meter.failure = None
    await trio.sleep(2 * COLLECTION_S)
    assert [sample.number for sample in host.bus.samples] == [1]


async def test_a_newer_table_is_taken_an_older_one_is_not(host):
    hear = host.bus.heard[decision_api.RING_PUBLISHED]
    for epoch, in_force in ((2, 3), (9, 9), (9, 9), (8, 9)):
        text = ring.encode(ring.Ring(epoch, ())).decode()
        payload = decision_api.encode(decision_api.RingTable(epoch, text))
        await trio.to_thread.run_sync(hear, payload)
        assert host.ring.epoch == in_force


@pytest.mark.parametrize("table", ["", "{}", '{"version": 9}', "no table"])
async def test_a_table_that_makes_no_sense_leaves_the_last_one_in_force(host, table):
    hear = host.bus.heard[decision_api.RING_PUBLISHED]
    with pytest.raises(errors.RingFormatError):
        await trio.to_thread.run_sync(hear, {"epoch": 9, "table": table})
    with pytest.raises(errors.RemoteProtocolError):
        await trio.to_thread.run_sync(hear, {"epoch": -1})
    assert host.ring.epoch == 3


async def test_a_sample_says_of_images_what_is_new(host):
    image_id = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
    host.images = {image_id: decision_api.HeldImage(size_bytes=9, cached_bytes=4)}
    await trio.sleep(COLLECTION_S)
    host.images = None
    await trio.sleep(COLLECTION_S)
    told = [sample.images for sample in host.bus.samples]
    assert told == [{image_id: decision_api.HeldImage(size_bytes=9, cached_bytes=4)}, None]


async def test_a_task_is_taken_and_nonsense_is_not(host):
    hear = host.bus.heard[decision_api.IMAGE_TASK_GIVEN]
    task = {"request": 1, "kind": "pre_seed", "image_id": "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"}
    await trio.to_thread.run_sync(hear, task)
    for wrong in ({}, task | {"kind": "erase"}, task | {"image_id": "../x"}, task | {"boots": 0}):
        with pytest.raises(errors.RemoteProtocolError):
            await trio.to_thread.run_sync(hear, wrong)
    assert [(one.request, one.kind.value) for one in host.tasks] == [(1, "pre_seed")]
