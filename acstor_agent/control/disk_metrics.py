# SPDX-License-Identifier: Apache-2.0
"""Metrics of the disk scheduler."""

from collections.abc import Iterator
from typing import Any

from prometheus_client import core

from acstor_agent.control import metric_values

Gauge = core.GaugeMetricFamily
Counter = core.CounterMetricFamily
Histogram = core.HistogramMetricFamily


def of_disk_io(io: dict[str, Any], by_image: bool) -> Iterator[core.Metric]:
    """Yield the metrics of ``status``'s disk_io; of each stream, or of each class of them."""
    yield core.InfoMetricFamily(
        "acstor_disk_policy", "Scheduling policy of the agent's disk", {"policy": io["policy"]}
    )
    yield Gauge(
        "acstor_disk_queued_requests", "Disk requests in the scheduler's queue", io["waiting"]
    )
    yield Counter(
        "acstor_disk_stalls", "Times when the disk did not complete a request in time", io["stalls"]
    )
    text = "Disk requests by seek distance"
    yield metric_values.labelled(
        Counter("acstor_disk_seeks", text, labels=["distance"]), io["seeks"]
    )
    streams = io["streams"]
    yield from _of_streams(streams if by_image else _by_class(streams))


def _by_class(streams: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for stream, count in streams.items():
        klass = stream.partition(":")[0]
        if (known := found.get(klass)) is None:
            found[klass] = count
            continue
        latency, other = known["latency"], count["latency"]
        buckets = [a + b for a, b in zip(latency["buckets"], other["buckets"], strict=True)]
        found[klass] = {
            **{name: known[name] + count[name] for name in ("requests", "bytes", "slices")},
            "slice_s": max(known["slice_s"] or 0.0, count["slice_s"] or 0.0),
            "waits": {end: known["waits"][end] + times for end, times in count["waits"].items()},
            "latency": {"buckets": buckets, "total_s": latency["total_s"] + other["total_s"]},
        }
    return found


def _of_streams(streams: dict[str, dict[str, Any]]) -> Iterator[core.Metric]:
    families = {
        name: Counter(f"acstor_disk_stream_{name}", text, labels=["stream"])
        for name, text in (
            ("requests", "Disk requests by stream"),
            ("bytes", "Bytes of disk requests by stream"),
            ("slices", "Time slices by stream"),
        )
    }
    length = Gauge(
        "acstor_disk_stream_slice_seconds", "Length of the last time slice", labels=["stream"]
    )
    waits = Counter(
        "acstor_disk_stream_waits", "Anticipation waits by their end", labels=["stream", "end"]
    )
    seconds = Histogram(
        "acstor_disk_stream_duration_seconds",
        "Duration of disk requests, from submission to completion",
        labels=["stream"],
    )
    for stream, count in streams.items():
        for name, family in families.items():
            family.add_metric([stream], count[name])
        length.add_metric([stream], count["slice_s"] or 0.0)
        for end, times in count["waits"].items():
            waits.add_metric([stream, end], times)
        seconds.add_metric([stream], *metric_values.cumulative_buckets(count["latency"]))
    yield from [*families.values(), length, waits, seconds]
