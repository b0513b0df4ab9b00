# SPDX-License-Identifier: Apache-2.0
"""Samples of a host with simulated interfaces and a simulated bus."""

import pathlib
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from acstor_agent.cloud import message_signing
from acstor_agent.core.cloud import interface_traffic
from acstor_common import errors
from acstor_common.identity import identity_files
from acstor_common.identity import signing
from acstor_common.model import boot_timeline
from acstor_common.model import ids
from acstor_common.model import minhash
from acstor_common.ring import hash_ring
from acstor_common.wire import decision_messages
from acstor_common.wire import signed_messages
from tests.fakes import cloud_keys
from tests.fakes import linked_host

COLLECTION_S, KEYS, CIDS = linked_host.COLLECTION_S, linked_host.KEYS, linked_host.CIDS
IMAGE = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"


async def until(is_true: Callable[[], Any]) -> None:
    with trio.fail_after(60):
        while not is_true():  # noqa: ASYNC110 - samples have no event
            await trio.sleep(0.01)


@pytest.fixture
async def host(nursery: trio.Nursery, tmp_path: pathlib.Path) -> linked_host.LinkedHost:
    made = linked_host.LinkedHost(tmp_path)
    nursery.start_soon(made.link.run)
    await trio.sleep(COLLECTION_S / 2)
    return made


async def test_sample_reports_total_and_chunk_traffic(host):
    host.meter.received, host.meter.sent, host.chunks = (
        3000,
        500,
        interface_traffic.TrafficBytes(1000, 0),
    )
    host.link.count_received(ids.HostId("h2"), 500, 0.25)
    host.link.count_received(ids.HostId("h2"), 0, 0.5)  # abandoned
    host.link.count_received(ids.HostId("h2"), 100, None)
    host.link.count_sent(ids.HostId("h2"), 7)
    host.link.count_received(ids.HostId("h3"), 400)
    await trio.sleep(COLLECTION_S)
    [sample] = host.bus.samples
    assert (sample.host, sample.address, sample.location) == ("h1", "10.0.0.1:7201", "pod1/rack1")
    assert (sample.number, sample.interval_s, sample.link_bytes_s) == (1, COLLECTION_S, 1000)
    assert sample.total == decision_messages.TrafficBytes(3000, 500)
    assert sample.chunks == decision_messages.TrafficBytes(1030, 20)
    assert (sample.cache_bytes, sample.cache_limit_bytes, sample.ring_epoch) == (70, 100, 3)
    assert sample.sketch == minhash.make_sketch(CIDS)
    assert sample.peers == {
        "h2": decision_messages.PeerTraffic(600, 7, decision_messages.TimedTraffic(500, 0.75)),
        "h3": decision_messages.PeerTraffic(400, 0),
    }


async def test_sample_reports_new_boots(host):
    boot = boot_timeline.Timeline(image_id=IMAGE, began_at_s=1.0, opened_s=0.5, slice_s=0.25)
    host.boots = (boot,)
    await trio.sleep(COLLECTION_S)
    host.boots = ()
    await trio.sleep(COLLECTION_S)
    assert [sample.boots for sample in host.bus.samples] == [(boot,), ()]


@pytest.mark.expect_log("no samples and boot traces are sent: this host has no certificate")
async def test_boots_are_kept_until_a_sample_can_be_sent(host):
    """Each boot is reported once."""
    first, second = (
        boot_timeline.Timeline(image_id=IMAGE, began_at_s=at_s, opened_s=0.5, slice_s=0.25)
        for at_s in (1.0, 2.0)
    )
    news = [(first,), (second,)]
    host.new_boots = lambda: news.pop(0) if news else ()
    identity_files.write(host.folder, KEYS.host("h1")._replace(certificate=b""))
    host.files.invalidate()
    await trio.sleep(2 * COLLECTION_S)
    assert host.bus.samples == []
    identity_files.write(host.folder, KEYS.host("h1"))
    host.files.invalidate()
    await until(lambda: len(host.bus.samples) >= 3)
    assert [sample.boots for sample in host.bus.samples[:3]] == [(first,), (second,), ()]


async def test_samples_are_numbered_and_report_differences(host):
    for received in (100, 100, 350):
        host.meter.received = received
        await trio.sleep(COLLECTION_S)
    samples = host.bus.samples
    assert [sample.number for sample in samples] == [1, 2, 3]
    assert [sample.total.received for sample in samples] == [100, 0, 250]
    assert len({(sample.session, sample.started_s) for sample in samples}) == 1
    assert samples[-1].peers == {}


async def test_start_time_of_an_agent_is_corrected_when_the_clock_is_set(
    nursery, tmp_path, monkeypatch
):
    right = time.time
    with monkeypatch.context() as wrong:
        wrong.setattr(time, "time", lambda: right() + 1e6)
        host = linked_host.LinkedHost(tmp_path)
    nursery.start_soon(host.link.run)
    await trio.sleep(COLLECTION_S / 2 + 2 * COLLECTION_S)
    samples = host.bus.samples
    assert abs(samples[0].started_s - right()) < 60
    assert len({(sample.session, sample.started_s) for sample in samples}) == 1


async def test_restarted_link_has_one_listener(nursery, tmp_path):
    host = linked_host.LinkedHost(tmp_path)
    failures = [RuntimeError("odd"), RuntimeError("odd")]

    def fail() -> interface_traffic.TrafficBytes:
        raise failures.pop()

    host.exchange_totals = fail
    for _ in range(len(failures)):
        with pytest.raises(RuntimeError):
            await host.link.run()
    del host.exchange_totals
    nursery.start_soon(host.link.run)
    await until(lambda: host.bus.samples)
    assert host.bus.listeners == 1


@pytest.mark.expect_log("none of .* exists; the decision service gets no samples of this host")
async def test_peer_traffic_is_discarded_while_no_sample_can_be_made(host):
    host.meter.failure = errors.Unusable("traffic_interfaces", "none of ['eth9'] exists")
    for number in range(100):
        host.link.count_received(ids.HostId(f"h{number}"), 1)
    await until(lambda: not host.link._peers)
    assert host.bus.samples == []


@pytest.mark.expect_log("none of .* exists; the decision service gets no samples of this host")
async def test_samples_pause_while_the_interface_is_missing(host):
    host.meter.failure = errors.Unusable("traffic_interfaces", "none of ['eth9'] exists")
    await trio.sleep(2 * COLLECTION_S)
    assert host.bus.samples == []
    host.meter.failure = None
    await trio.sleep(2 * COLLECTION_S)
    assert [sample.number for sample in host.bus.samples] == [1]


async def test_newer_table_is_accepted_and_older_one_is_refused(host):
    for epoch, in_force in ((3, 3), (9, 9), (9, 9)):
        await host.deliver(decision_messages.RING_PUBLISHED, KEYS.table(hash_ring.Ring(epoch, ())))
        assert host.rings.ring.epoch == in_force
    for epoch in (3, 8):
        with pytest.raises(errors.NotAuthenticated, match=f"epoch {epoch} is not higher than 9"):
            await host.deliver(
                decision_messages.RING_PUBLISHED, KEYS.table(hash_ring.Ring(epoch, ()))
            )
    assert host.rings.ring.epoch == 9


STRANGER = cloud_keys.CloudKeys()
LEAP = 3 + 1_000_001


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (
            decision_messages.RingTable(9, KEYS.table(hash_ring.Ring(9, ())).table),
            "none of the trusted keys",
        ),
        (STRANGER.table(hash_ring.Ring(9, ())), "none of the trusted keys made it"),
        (KEYS.table(hash_ring.Ring(9, ()), reported=10), "the signature is for epoch 9"),
        (KEYS.table(hash_ring.Ring(LEAP, ())), "is too high"),
        (KEYS.table(hash_ring.Ring((1 << 53) - 1, ())), "is too high"),
    ],
)
async def test_unauthenticated_table_is_refused_and_the_current_one_stays(host, sent, why):
    with pytest.raises(errors.NotAuthenticated, match=why):
        await host.deliver(decision_messages.RING_PUBLISHED, sent)
    assert host.rings.ring.epoch == 3


async def test_table_is_not_parsed_before_its_signature_is_verified(host, monkeypatch):
    def decode(*_: object) -> None:
        pytest.fail("a table that nobody signed was read")

    monkeypatch.setattr(message_signing.hash_ring, "decode", decode)
    with pytest.raises(errors.NotAuthenticated):
        await host.deliver(decision_messages.RING_PUBLISHED, STRANGER.table(hash_ring.Ring(9, ())))


@pytest.mark.parametrize("table", ["", "{}", '{"version": 9}', "no table"])
async def test_signed_but_invalid_table_is_refused(host, table):
    signature = signed_messages.signature_of(signing.TABLE, table.encode(), KEYS.signing_key)
    with pytest.raises(errors.RingFormatError):
        await host.deliver(
            decision_messages.RING_PUBLISHED, decision_messages.RingTable(9, table, signature)
        )
    for payload in ({"epoch": -1}, {"epoch": 1 << 53, "table": ""}, None, 7):
        with pytest.raises(errors.RemoteProtocolError):
            await host.deliver(decision_messages.RING_PUBLISHED, payload)
    assert host.rings.ring.epoch == 3


@pytest.mark.expect_log(
    "v-node tables and tasks are refused for now: this host has no keys to verify signatures"
)
@pytest.mark.expect_log("no samples and boot traces are sent: this host has no certificate")
async def test_host_without_identity_files_sends_nothing_and_warns_once(
    tmp_path, nursery, watched_log
):
    made = linked_host.LinkedHost(tmp_path)
    made.folder.unlink()
    made.files.invalidate()
    nursery.start_soon(made.link.run)
    await trio.sleep(2.5 * COLLECTION_S)
    with pytest.raises(errors.NotAuthenticated, match="has no keys to verify signatures"):
        await made.deliver(decision_messages.RING_PUBLISHED, KEYS.table(hash_ring.Ring(9, ())))
    with pytest.raises(errors.NotAuthenticated):
        await made.deliver(decision_messages.IMAGE_TASK_GIVEN, KEYS.task(TASK))
    assert (made.bus.samples, made.tasks, made.rings.ring.epoch) == ([], [], 3)
    assert len(watched_log.messages) == 2


@pytest.mark.expect_log("no samples and boot traces are sent: this host has no certificate")
async def test_host_without_a_certificate_sends_nothing_and_warns_once(host, watched_log):
    identity_files.write(host.folder, KEYS.host("h1")._replace(certificate=b""))
    host.files.invalidate()
    await trio.sleep(3 * COLLECTION_S)
    assert host.bus.samples == []
    assert len(watched_log.messages) == 1
    identity_files.write(host.folder, KEYS.host("h1"))
    host.files.invalidate()
    await trio.sleep(COLLECTION_S)
    assert len(host.bus.samples) == 1


async def test_sample_reports_changed_images(host):
    image_id = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
    host.images = {image_id: decision_messages.HeldImage(size_bytes=9, cached_bytes=4)}
    await trio.sleep(COLLECTION_S)
    host.images = None
    await trio.sleep(COLLECTION_S)
    reported = [sample.images for sample in host.bus.samples]
    assert reported == [{image_id: decision_messages.HeldImage(size_bytes=9, cached_bytes=4)}, None]


TASK = decision_messages.ImageTask(
    request=1, kind=decision_messages.TaskKind.PRE_SEED, image_id=IMAGE
)


async def test_signed_task_is_accepted_once(host):
    given = KEYS.task(TASK, "h1")
    await host.deliver(decision_messages.IMAGE_TASK_GIVEN, given)
    with pytest.raises(
        errors.NotAuthenticated, match=r"a task for image .*: it was accepted before"
    ):
        await host.deliver(decision_messages.IMAGE_TASK_GIVEN, given)
    assert host.tasks == [TASK]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (lambda: KEYS.task(TASK, "h2", "h11"), "it is for other hosts"),
        (lambda: KEYS.task(TASK, given_s=time.time() - 86_400), "it was sent 86400 s ago"),
        (lambda: KEYS.task(TASK, given_s=time.time() + 86_400), "one of the two clocks is wrong"),
    ],
)
async def test_task_for_other_hosts_or_with_a_wrong_time_is_refused(host, given, why):
    with pytest.raises(errors.NotAuthenticated, match=why):
        await host.deliver(decision_messages.IMAGE_TASK_GIVEN, given())
    assert host.tasks == []


@pytest.mark.parametrize(
    "forged",
    [
        STRANGER.task(TASK),
        KEYS.task(TASK, purpose=signing.TABLE),
        msgspec.structs.replace(KEYS.task(TASK, "h2"), payload=KEYS.task(TASK).payload),
        signed_messages.sign_payload(  # the key of a host must not sign tasks
            decision_messages.TaskForHosts(task=TASK, given_s=time.time()),
            signing.TASK,
            KEYS.host("h1").key,
            KEYS.host("h1").certificate,
        ),
    ],
)
async def test_forged_task_is_refused(host, forged):
    with pytest.raises(errors.NotAuthenticated):
        await host.deliver(decision_messages.IMAGE_TASK_GIVEN, forged)
    assert host.tasks == []


async def test_invalid_task_is_refused(host):
    task = decision_messages.encode(TASK)
    wrong = (task | {"kind": "erase"}, task | {"image_id": "../x"}, task | {"boots": 0})
    for one in ({}, task, *({"task": bad, "given_s": time.time()} for bad in wrong)):
        text = msgspec.json.encode(one)
        signature = signed_messages.signature_of(signing.TASK, text, KEYS.signing_key)
        signed = decision_messages.Signed(text.decode(), signature)
        with pytest.raises(errors.RemoteProtocolError):
            await host.deliver(decision_messages.IMAGE_TASK_GIVEN, signed)
    with pytest.raises(errors.RemoteProtocolError):
        await host.deliver(decision_messages.IMAGE_TASK_GIVEN, task)
    assert host.tasks == []
