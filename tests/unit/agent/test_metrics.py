# SPDX-License-Identifier: Apache-2.0
import socket

import msgspec
import prometheus_client
import pytest
import trio
from prometheus_client import parser

from acstor_agent.control import image_status
from acstor_agent.control import metrics
from acstor_agent.control import status
from acstor_agent.core import counters
from acstor_agent.core.boot import boot_phases
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.mount import blocked_requests
from acstor_agent.images.read import read_admission
from acstor_agent.peers import peer_network
from acstor_agent.runtime import disk_io
from acstor_common import errors
from acstor_common.model import boot_timeline
from acstor_common.model import ids
from tests.fakes import admission
from tests.fakes import one_host

NET = peer_network.PeerNetwork(ids.HostId("h1"), admission=admission.Admission())
CHUNK = one_host.CHUNK
WHOLE = {
    "state": "filling",
    "why": "",
    "total_bytes": 1000,
    "remaining_bytes": 250,
    "cached_share": 0.75,
    "rate_bytes_s": 50,
    "remaining_s": 5.0,
    "due_in_s": 3.5,
    "is_late": True,
    "shortfall_bytes": 0,
    "is_pinned": False,
    "mode": "normal",
}


BOOT = boot_timeline.Timeline(
    image_id=one_host.IMAGE,
    began_at_s=0.0,
    spans=(boot_timeline.Span("chunk map", 0.0, 0.3),),
    opened_s=0.5,
    last_s=12.5,
    waited_s={"source": 4.0, "peer": 0.5},
    slice_s=1.0,
)
DETACHED = "0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0aff"
TURN = "acstor_event_loop_lag_seconds"
TURNS = counters.Latency()
TURNS.add(0.002)
TURNS.add(0.3)


def exposed(picture):
    registry = prometheus_client.CollectorRegistry()
    registry.register(metrics.Collector(lambda: picture))
    text = prometheus_client.generate_latest(registry).decode()
    return {family.name: family for family in parser.text_string_to_metric_families(text)}


class FakeHydration:
    """The fill status of hydrated images."""

    def __init__(self, shown):
        self.status = self
        self.list_status = lambda: shown


async def picture_of(host, by_image=False):
    late = {
        one_host.IMAGE: blocked_requests.LateWaits(2, 7.5, ""),
        "a disk": blocked_requests.LateWaits(1, 9.5, ""),
    }
    whole = FakeHydration(
        {one_host.IMAGE: WHOLE, "another": WHOLE | {"is_late": None, "due_in_s": None}}
    )
    boots = boot_phases.BootHistograms()
    boots.count_boot(BOOT)
    if by_image:
        boots.count_boot(msgspec.structs.replace(BOOT, image_id=DETACHED))
    report = image_status.ImageReport(host.mirrors, whole, host.chunks.counters, late, boots)
    return {
        "by_image": by_image,
        **(report.numbers_by_image() if by_image else report.totals()),
        "exchange": status.of_exchange(host.chunks, NET),
        "detached": {"images": 5, "purged_chunks": 6},
        "replicas": {"images": 2, "bytes": 7777, "leased_images": 3, "refused": 4, "ignored": 5},
        "boot": image_status.of_boots(host.boots),
        "cache": status.of_cache(host.cache),
        "disk_io": status.of_disk_io(host.io),
        "event_loop": status.of_latency(TURNS),
        "guests": status.of_guests(host.waiting, read_admission.ReadAdmission(), 4, ["s1"]),
        "refused": {"gets": 5, "looks": 3, "connections": 2, "handshakes": 7},
        "sources": {
            "/srv/images": {"hanging_calls": 3, "hanging_for_s": 7.5, "missed_attempts": 9}
        },
        "faults": {"control_socket": {"why": "it cannot be created", "since_s": 1234.5}},
        "nova": {"fallbacks": {"disk-format": 3}},
        "ring": {"epoch": 7, "hosts": 3},
        "identity": {
            "certificate_not_after_s": 1_800_000_000,
            "signers": 2,
            "enrolment": {"failures": 4, "clock_offset_s": -7.5},
        },
    }


async def test_every_number_of_status_has_a_metric(tmp_path):
    async with one_host.one_host(tmp_path) as host:
        host.add(one_host.image_bytes(4 * CHUNK))
        await (await host.mirrors.attach_image(one_host.IMAGE)).read_at(0, 3 * CHUNK)
        picture = await picture_of(host)
    families = exposed(picture)
    for name in picture["exchange"]:
        shown = {"in_backoff": "peers_in_backoff"}.get(name, name)
        assert f"acstor_{shown}" in families
    unshown = {"slabs", "chunks_by_class", "bytes_by_class"}
    assert {name for name in picture["cache"] if f"acstor_cache_{name}" not in families} == unshown
    for name in picture["replicas"]:
        shown = {"refused": "refused_images", "ignored": "ignored_messages"}.get(name, name)
        assert f"acstor_replica_{shown}" in families
    for name in picture["boot"]:
        shown = name if name.endswith("_bytes") else f"images_{name}"
        assert f"acstor_boot_{shown}" in families
    assert families["acstor_ring_epoch"].samples[0].value == 7
    assert families["acstor_images_detached"].samples[0].value == 5
    assert families["acstor_purged_chunks"].samples[0].value == 6
    turns = {one.labels.get("le", one.name): one.value for one in families[TURN].samples}
    assert (turns["0.001"], turns["0.0025"], turns["+Inf"]) == (0, 1, 2)
    assert turns[f"{TURN}_sum"] == pytest.approx(0.302)
    for name, value in (
        ("certificate_expiry_timestamp_seconds", 1_800_000_000),
        ("trusted_signers", 2),
        ("enrolment_consecutive_failures", 4),
        ("clock_offset_seconds", -7.5),
    ):
        assert families[f"acstor_{name}"].samples[0].value == value
    assert families["acstor_source_bytes"].samples[0].value == 3 * CHUNK
    for name, value in (("hanging_calls", 3), ("timeouts", 9)):
        sample = families[f"acstor_source_{name}"].samples[0]
        assert (sample.labels, sample.value) == ({"source": "/srv/images"}, value)
    refused = families["acstor_refused_peer_requests"].samples
    assert {s.labels["kind"]: s.value for s in refused} == {
        "gets": 5,
        "looks": 3,
        "connections": 2,
        "handshakes": 7,
    }
    sample = families["acstor_nova_fallbacks"].samples[0]
    assert (sample.labels, sample.value) == ({"reason": "disk-format"}, 3)


async def test_scheduled_io_is_shown_by_stream(tmp_path):
    async with one_host.one_host(tmp_path) as host, trio.open_nursery() as nursery:
        host.add(one_host.image_bytes(4 * CHUNK))
        await nursery.start(host.io.serve)
        host.io.change_policy("pregather")
        for number in range(3):
            await host.io.run(number * 4096, 4096, False, lambda: None)
        shown = status.of_disk_io(host.io)
        await host.mirrors.attach_image(one_host.IMAGE)
        picture = await picture_of(host) | {"disk_io": shown}
        nursery.cancel_scope.cancel()
    families = exposed(picture)
    sample = families["acstor_disk_stream_bytes"].samples[0]
    assert (sample.labels, sample.value) == ({"stream": "background"}, 3 * 4096)
    assert {s.labels["distance"]: s.value for s in families["acstor_disk_seeks"].samples} == {
        "zero": 2,
        "near": 0,
        "far": 0,
    }
    assert families["acstor_disk_policy_info"].samples[0].labels == {"policy": "pregather"}
    counts = [
        s
        for s in families["acstor_disk_stream_duration_seconds"].samples
        if s.name.endswith("count")
    ]
    assert counts[0].value == 3


async def test_read_duration_is_a_cumulative_histogram(tmp_path):
    async with one_host.one_host(tmp_path) as host:
        host.add(one_host.image_bytes(4 * CHUNK))
        image = await host.mirrors.attach_image(one_host.IMAGE)
        for seconds in (0.00001, 0.003, 0.003, 0.7, 100.0):
            image.counters.count_read(seconds)
        picture = await picture_of(host)
    samples = exposed(picture)["acstor_read_duration_seconds"].samples
    buckets = {s.labels["le"]: s.value for s in samples if s.name.endswith("_bucket")}
    assert buckets["5e-05"] == 1
    assert (buckets["0.0025"], buckets["0.005"]) == (1, 3)
    assert (buckets["1.0"], buckets["30.0"], buckets["+Inf"]) == (4, 4, 5)
    assert next(s.value for s in samples if s.name.endswith("_sum")) == pytest.approx(100.70601)


@pytest.mark.parametrize("by_image", [False, True])
async def test_metrics_name_images_and_guests_only_with_the_option(tmp_path, by_image):
    async with one_host.one_host(tmp_path) as host:
        host.add(one_host.image_bytes(4 * CHUNK))
        await (await host.mirrors.attach_image(one_host.IMAGE)).read_at(0, 3 * CHUNK)
        for klass, name in (("GUEST", f"{one_host.IMAGE}/8"), ("GUEST", "other/9"), ("PEER", "h2")):
            stream = requests.Stream(requests.Klass[klass], name)
            host.io.counters.count_completion(requests.DiskRequest(stream, 0, 4096), 0.5)
        families = exposed(await picture_of(host, by_image))

    def shown(name, **labels):
        found = [s for family in families.values() for s in family.samples if s.name == name]
        return sum(s.value for s in found if labels.items() <= s.labels.items())

    own = {"image": one_host.IMAGE} if by_image else {}
    assert shown("acstor_read_bytes_total", origin="source", **own) == 3 * CHUNK
    assert shown("acstor_fetched_bytes_total", origin="source", **own) == 3 * CHUNK
    assert shown("acstor_read_duration_seconds_count", **own) == 1
    times = 1 if by_image else 2
    for name, value in (
        ("target_bytes", 1000 * times),
        ("remaining_bytes", 250 * times),
        ("shortfall_bytes", 0),
        ("rate_bytes_per_second", 50 * times),
        ("deadline_seconds", 3.5),
        ("late_images", 1),
    ):
        assert shown(f"acstor_fill_{name}", **own) == value
    assert shown("acstor_fill_images", state="filling", **own) == times
    assert shown("acstor_late_requests", **own) == (2 if by_image else 3)
    assert shown("acstor_oldest_wait_seconds", **own) == (7.5 if by_image else 9.5)
    stream = f"guest:{one_host.IMAGE}/8" if by_image else "guest"
    assert shown("acstor_disk_stream_bytes_total", stream=stream) == 4096 * times
    assert shown("acstor_disk_stream_duration_seconds_count", stream=stream) == times
    phases = "acstor_boot_phase_duration_seconds"
    boots = {phase: shown(f"{phases}_count", phase=phase, **own) for phase in boot_phases.BootPhase}
    assert boots == {
        "attach": 0,
        "chunk_map": 1,
        "boot_image": 0,
        "reads": 1,
        "waiting": 1,
        "total": 1,
    }
    assert shown(f"{phases}_bucket", phase="total", le="10.0", **own) == 0
    assert shown(f"{phases}_bucket", phase="total", le="20.0", **own) == 1
    assert shown(f"{phases}_sum", phase="waiting", **own) == 4.5
    assert (one_host.IMAGE in str(families)) == by_image
    assert DETACHED not in str(families), "no more images are named than the host has"


def test_agent_without_images_has_metrics_too():
    picture = {"by_image": True, "reads": {}, "fill": {}, "late": {}}
    picture |= {"ring": {"epoch": 0, "hosts": 0}, "nova": {"fallbacks": {}}}
    picture["boot_phases"] = {}
    picture["faults"] = {}
    picture["sources"] = {}
    picture["detached"] = {"images": 0, "purged_chunks": 0}
    picture["refused"] = {"gets": 0, "connections": 0}
    picture["guests"] = {
        "waiting_reads": 0,
        "waiting_writes": 0,
        "refused": 0,
        "ended": 0,
        "on_dead_mounts": (),
    }
    picture["event_loop"] = status.of_latency(counters.Latency())
    picture["replicas"] = None
    picture["identity"] = {"certificate_not_after_s": None, "signers": 0, "enrolment": None}
    picture["exchange"] = dict.fromkeys(
        [
            "chunks_in_flight",
            "source_bytes",
            "relayed_bytes",
            "prefetched_bytes",
            "served_bytes",
            "served_chunks",
            "invalid_chunks",
            "failovers",
            "hedged_requests",
            "referrals_followed",
            "source_preferred_reads",
            "is_source_preferred",
            "advertised_chunks",
            "ignored_advertisements",
            "false_advertisements",
            "withdrawn_advertisements",
            "peer_listener_restarts",
            "peer_internal_errors",
            "demotion_requests_sent",
            "demoted_chunks",
        ],
        0,
    ) | {"in_backoff": {}}
    names = "stored_bytes disk_bytes limit_bytes pending_bytes chunks"
    names += " reserved_bytes pinned_bytes pinned_missing_chunks"
    names += " evictions corrupt_chunks rejected_chunks write_errors fault"
    counted = "memory_bytes memory_limit_bytes loaded dropped ignored refused failed recorded"
    counted += " prefetched prefetched_bytes prefetched_used_bytes"
    picture["boot"] = dict.fromkeys(counted.split(), 0)
    picture["cache"] = dict.fromkeys(names.split(), 0)
    picture["disk_io"] = status.of_disk_io(disk_io.DiskIo())
    assert exposed(picture)["acstor_cache_chunks"].samples[0].value == 0


@pytest.mark.parametrize("address", ["", "hello", "127.0.0.1", "127.0.0.1:0", "192.0.2.1:9464"])
def test_error_on_an_unusable_address_names_the_option(address):
    with pytest.raises(errors.Unusable, match="metrics_listen"):
        metrics.serve(address, dict)


def test_port_in_use_is_named_and_a_released_one_is_free():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(errors.Unusable, match=address):
            metrics.serve(address, dict)
    metrics.serve(address, dict)()
    metrics.serve(address, dict)()
