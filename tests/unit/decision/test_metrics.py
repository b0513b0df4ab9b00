# SPDX-License-Identifier: Apache-2.0
import socket
import urllib.request

import prometheus_client
import pytest
from prometheus_client import parser

from acstor_common import errors
from acstor_decision import metrics
from acstor_decision.core import cloud_state
from acstor_decision.core import threshold

HOSTS = {"h1": metrics.HostMetrics(40, 1.5, True), "h2": metrics.HostMetrics(160, 0.0, False)}
PICTURE = metrics.InstanceMetrics(
    leads=True,
    round_s=1234.5,
    has_database=False,
    epoch=7,
    thresholds=threshold.Thresholds(2),
    places=3,
    segment_chunks=4,
    traffic_cv=0.75,
    hosts=HOSTS,
    silent=["h8", "h9"],
    silent_total=9,
    accepted_samples=41,
    refused={"future": 3, "malformed": 1},
    refused_enrolments={"no_room": 5},
    checkpoints=[
        cloud_state.NewestCheckpoint("s1", 25.0, 600, 4096),
        cloud_state.NewestCheckpoint("s2", 12.5, 3600, 4),
        cloud_state.NewestCheckpoint("by hand", 1.0, 0, 3),
    ],
    checkpoints_registered=8,
    checkpoints_refused={"stale": 4},
    grants_refused={"not_in_use": 6},
    published={"overload": 2},
    moved=60,
)


def shown(picture: metrics.InstanceMetrics) -> dict[tuple[str, str], float]:
    registry = prometheus_client.CollectorRegistry()
    registry.register(metrics.Collector(lambda: picture))
    return values(prometheus_client.generate_latest(registry).decode())


def values(text: str) -> dict[tuple[str, str], float]:
    """Return the values by name without the prefix and by the one label."""
    samples = (s for f in parser.text_string_to_metric_families(text) for s in f.samples)
    return {
        (s.name.removeprefix("acstor_decision_"), "".join(s.labels.values())): s.value
        for s in samples
    }


def test_every_field_of_instance_metrics_is_exported():
    reported = shown(PICTURE)
    assert reported == {
        ("is_leader", ""): 1,
        ("last_round_timestamp_seconds", ""): 1234.5,
        ("database_up", ""): 0,
        ("switch_loads_up", ""): 1,
        ("ring_epoch", ""): 7,
        ("silent_hosts", ""): 9,
        ("host_silent", "h8"): 1,
        ("host_silent", "h9"): 1,
        ("ring_threshold", ""): 2,
        ("ring_outer_threshold", ""): 0,
        ("ring_places", ""): 3,
        ("ring_segment_chunks", ""): 4,
        ("hosts", ""): 2,
        ("traffic_cv", ""): 0.75,
        ("accepted_samples_total", ""): 41,
        ("moved_vnodes_total", ""): 60,
        ("refused_samples_total", "future"): 3,
        ("refused_samples_total", "malformed"): 1,
        ("refused_enrolments_total", "no_room"): 5,
        ("published_rings_total", "overload"): 2,
        ("registered_checkpoints_total", ""): 8,
        ("refused_checkpoints_total", "stale"): 4,
        ("refused_grants_total", "not_in_use"): 6,
        ("checkpoint_timestamp_seconds", ""): 12.5,
        ("checkpoint_interval_seconds", ""): 3600,
        ("checkpoint_changed_bytes", ""): 4103,
        ("checkpoint_deadline_timestamp_seconds", ""): 1225.0,
        ("host_vnodes", "h1"): 40,
        ("host_vnodes", "h2"): 160,
        ("host_traffic_ratio", "h1"): 1.5,
        ("host_traffic_ratio", "h2"): 0,
        ("host_overloaded", "h1"): 1,
        ("host_overloaded", "h2"): 0,
    }


def test_instance_without_a_round_exports_zeros():
    reported = shown(metrics.InstanceMetrics())
    assert (
        reported["is_leader", ""],
        reported["last_round_timestamp_seconds", ""],
        reported["hosts", ""],
    ) == (
        0,
        0,
        0,
    )


def test_endpoint_responds_until_it_is_stopped():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    stop = metrics.serve(f"127.0.0.1:{port}", lambda: PICTURE)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert values(answer.read().decode())["ring_epoch", ""] == 7
    stop()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), 1)


@pytest.mark.parametrize("address", ["here", "127.0.0.1:0", "192.0.2.1:9465"])
def test_unusable_listen_address_is_named(address):
    with pytest.raises(errors.Unusable, match=f"metrics_listen.*{address}"):
        metrics.serve(address, lambda: PICTURE)
