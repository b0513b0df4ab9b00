# SPDX-License-Identifier: Apache-2.0
"""Prometheus endpoint of the decision service: the state after the last round."""

import dataclasses
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

import prometheus_client
from prometheus_client import core
from prometheus_client import registry

from acstor_common.service import metrics_endpoint
from acstor_decision.core import cloud_state
from acstor_decision.core import threshold

_NO_THRESHOLDS = threshold.Thresholds()


@dataclasses.dataclass(frozen=True)
class HostMetrics:
    """Metrics of one host."""

    vnodes: int
    traffic_share: float  # without chunks, in plus out, as a share of its link's rate
    is_overloaded: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstanceMetrics:
    """Metrics of an instance."""

    leads: bool = False
    round_s: float = 0.0  # wall clock at the end of the last round; 0: none yet
    has_database: bool = True
    has_loads: bool = True
    epoch: int = 0
    thresholds: threshold.Thresholds = _NO_THRESHOLDS
    segment_chunks: int = 1
    places: int = 0
    traffic_cv: float = 0.0  # imbalance of the hosts' traffic (Wu et al. 2017, Equation 2)
    hosts: Mapping[str, HostMetrics] = dataclasses.field(default_factory=dict)
    silent: Sequence[str] = ()  # the first ones, if this instance leads and receives samples
    silent_total: int = 0  # their number
    accepted_samples: int = 0  # samples accepted
    refused: Mapping[str, int] = dataclasses.field(default_factory=dict)  # samples, by reason
    refused_enrolments: Mapping[str, int] = dataclasses.field(default_factory=dict)
    checkpoints: Sequence[cloud_state.NewestCheckpoint] = ()  # the newest ones, if it leads
    checkpoints_registered: int = 0
    checkpoints_refused: Mapping[str, int] = dataclasses.field(default_factory=dict)
    grants_refused: Mapping[str, int] = dataclasses.field(default_factory=dict)
    published: Mapping[str, int] = dataclasses.field(default_factory=dict)  # tables, by reason
    moved: int = 0


class Collector(registry.Collector):
    """Converts the current InstanceMetrics into Prometheus metrics; another thread calls it."""

    def __init__(self, current: Callable[[], InstanceMetrics]) -> None:
        self._current = current

    def collect(self) -> Iterator[core.Metric]:
        """Yield all metrics."""
        current = self._current()
        yield from _of_instance(current)
        yield from _of_hosts(current.hosts)
        silent = core.GaugeMetricFamily(
            "acstor_decision_host_silent",
            "1: the host enrolled and sends no samples; of many hosts, the first by name",
            labels=["host"],
        )
        for host in current.silent:
            silent.add_metric([host], 1)
        yield silent
        yield from _of_checkpoints(current.checkpoints)
        yield from _of_counts(current)


def serve(address: str, current: Callable[[], InstanceMetrics]) -> Callable[[], None]:
    """Start the endpoint; return a function that stops it; Unusable: a bad ``address``."""
    own = prometheus_client.CollectorRegistry()
    own.register(Collector(current))
    return metrics_endpoint.serve(address, own, "[acstor_decision] metrics_listen")


def _of_counts(current: InstanceMetrics) -> Iterator[core.Metric]:
    for name, text, counts in (
        ("refused_samples", "Samples refused, by reason", current.refused),
        (
            "refused_enrolments",
            "Requests for a certificate refused by all instances of the API, by reason",
            current.refused_enrolments,
        ),
        (
            "refused_checkpoints",
            "Registrations of checkpoints refused, by reason",
            current.checkpoints_refused,
        ),
        (
            "refused_grants",
            "Requests of hosts for grants of images refused, by reason",
            current.grants_refused,
        ),
        (
            "published_rings",
            "V-node tables that this instance published, by reason",
            current.published,
        ),
    ):
        family = core.CounterMetricFamily(f"acstor_decision_{name}", text, labels=["reason"])
        for value, count in counts.items():
            family.add_metric([value], count)
        yield family


def _of_instance(current: InstanceMetrics) -> Iterator[core.Metric]:
    for name, text, value in (
        ("is_leader", "Whether this instance leads: 1, or 0", current.leads),
        ("last_round_timestamp_seconds", "End of the last round", current.round_s),
        ("database_up", "Whether the database answers: 1, or 0", current.has_database),
        ("switch_loads_up", "Whether the switches' loads are known: 1, or 0", current.has_loads),
        ("ring_epoch", "Epoch of the current v-node table", current.epoch),
        ("ring_threshold", "Threshold of the table; 0: none", current.thresholds.near or 0),
        (
            "ring_outer_threshold",
            "Outer threshold of the table; 0: none",
            current.thresholds.outer or 0,
        ),
        ("ring_places", "Locations with settings of their own in the table", current.places),
        (
            "ring_segment_chunks",
            "Consecutive chunks of an image that have the same home",
            current.segment_chunks,
        ),
        ("hosts", "Hosts that send samples", len(current.hosts)),
        ("silent_hosts", "Hosts that enrolled and send no samples", current.silent_total),
        (
            "traffic_cv",
            "Coefficient of variation of hosts' traffic, with chunks",
            current.traffic_cv,
        ),
    ):
        yield core.GaugeMetricFamily(f"acstor_decision_{name}", text, value)
    for name, text, value in (
        ("accepted_samples", "Samples accepted", current.accepted_samples),
        (
            "registered_checkpoints",
            "Checkpoints that this instance registered",
            current.checkpoints_registered,
        ),
        ("moved_vnodes", "V-nodes that this instance's tables moved", current.moved),
    ):
        yield core.CounterMetricFamily(f"acstor_decision_{name}", text, value)


def _of_hosts(hosts: Mapping[str, HostMetrics]) -> Iterator[core.Metric]:
    vnodes, share, overloaded = (
        core.GaugeMetricFamily(f"acstor_decision_host_{name}", text, labels=["host"])
        for name, text in (
            ("vnodes", "V-nodes of the host"),
            ("traffic_ratio", "Traffic without chunks, in and out, by the rate of its links"),
            ("overloaded", "Whether the host was overloaded in the last collection: 1, or 0"),
        )
    )
    for name, host in hosts.items():
        vnodes.add_metric([name], host.vnodes)
        share.add_metric([name], host.traffic_share)
        overloaded.add_metric([name], host.is_overloaded)
    yield from (vnodes, share, overloaded)


def _of_checkpoints(
    checkpoints: Sequence[cloud_state.NewestCheckpoint],
) -> Iterator[core.Metric]:
    taken, interval, changed, deadline = (
        core.GaugeMetricFamily(f"acstor_decision_checkpoint_{name}", text)
        for name, text in (
            ("timestamp_seconds", "When the newest checkpoint of a server was taken; the oldest"),
            ("interval_seconds", "Checkpoint interval of a server, 0: no checkpoints; the longest"),
            ("changed_bytes", "Data of disks that differs from their images, in the newest"),
            ("deadline_timestamp_seconds", "When the first one becomes older than two intervals"),
        )
    )
    promised = [checkpoint for checkpoint in checkpoints if checkpoint.interval_s]
    changed.add_metric([], sum(checkpoint.changed_bytes for checkpoint in checkpoints))
    if promised:
        taken.add_metric([], min(checkpoint.taken_s for checkpoint in promised))
        interval.add_metric([], max(checkpoint.interval_s for checkpoint in promised))
        deadline.add_metric([], min(map(_deadline_s, promised)))
    yield from (taken, interval, changed, deadline)


def _deadline_s(checkpoint: cloud_state.NewestCheckpoint) -> float:
    return checkpoint.taken_s + 2 * checkpoint.interval_s
