# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics of the vault and of checkpoints, read without blocking."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Protocol

import prometheus_client
from prometheus_client import core
from prometheus_client import registry

from acstor_checkpoint.schedule import failures
from acstor_checkpoint.vault import quota
from acstor_checkpoint.vault import scrubber
from acstor_checkpoint.vault import vault_store
from acstor_common.model import ids
from acstor_common.service import metrics_endpoint


class VaultCollector(registry.Collector):
    """Metrics of a vault."""

    def __init__(self, vault: vault_store.VaultStore) -> None:
        self._vault = vault

    def collect(self) -> Iterator[core.Metric]:
        """Yield the vault's metrics."""
        for name, text, value in self._gauges():
            yield core.GaugeMetricFamily(f"acstor_vault_{name}", text, value)
        refused = core.CounterMetricFamily(
            "acstor_vault_refused_files",
            "Files and folders refused, by the limit that was reached",
            labels=["limit"],
        )
        for bound in quota.Bound:
            refused.add_metric([bound], self._vault.quota.refused[bound])
        yield refused
        yield core.SummaryMetricFamily(
            "acstor_vault_sync_seconds",
            "Duration of flushes to the disk",
            self._vault.group_sync.passes,
            self._vault.group_sync.took_s,
        )
        yield core.CounterMetricFamily(
            "acstor_vault_corrupt_files",
            "Corrupt files that were removed",
            self._vault.corrupt_files,
        )
        yield core.CounterMetricFamily(
            "acstor_vault_throttled_seconds",
            "Time that the rate limit of lookups delayed requests",
            self._vault.lookup_rate.waited_s,
        )

    def _gauges(self) -> Iterator[tuple[str, str, float]]:
        used, limits = self._vault.quota.usage_by_host(), self._vault.quota.limits
        used_bytes = sum(usage.size_bytes for usage in used.values())
        yield "used_bytes", "Size of the vault's files on disk", used_bytes
        inodes = sum(usage.inodes for usage in used.values())
        yield "inodes", "Files and folders of the vault", inodes
        yield "hosts", "Hosts with data in the vault", len(used)
        full_hosts = self._vault.quota.full_hosts()
        yield "full_hosts", "Hosts whose quota is used up", full_hosts
        yield "limit_bytes", "Limit of the size of the vault's files", limits.total_bytes
        yield "limit_inodes", "Limit of the number of files and folders", limits.inodes
        can_sync = not self._vault.group_sync.has_failed
        yield "sync_ok", "Whether the vault can flush data to the disk: 1, or 0", can_sync
        scrubbed_s = scrubber.ended_s(self._vault.folder) or 0.0
        yield (
            "last_scrub_timestamp_seconds",
            "End of the last complete scrub; 0: none",
            scrubbed_s,
        )


class CheckpointStatus(Protocol):
    """Status of the checkpoints of this host; thread-safe."""

    failures: failures.Failures

    def overdue_s(self) -> Mapping[ids.ImageId, float]:
        """Return for how long servers are overdue."""

    def running_captures_s(self) -> Mapping[ids.ImageId, float]:
        """Return for how long checkpoints have been running."""


class CheckpointCollector(registry.Collector):
    """Metrics of checkpoints; of times, the longest of all servers."""

    def __init__(self, daemon: CheckpointStatus) -> None:
        self._daemon = daemon

    def collect(self) -> Iterator[core.Metric]:
        """Yield overdue and capture times, and failures."""
        for name, text, found in (
            (
                "overdue_seconds",
                "Time that a server has waited for a checkpoint beyond its interval",
                self._daemon.overdue_s(),
            ),
            (
                "capture_seconds",
                "Time that the capture of a server's disk has taken; it blocks migrations",
                self._daemon.running_captures_s(),
            ),
        ):
            longest_s = max(found.values(), default=0.0)
            yield core.GaugeMetricFamily(f"acstor_checkpoint_{name}", text, longest_s)
        yield from self._failed()

    def _failed(self) -> Iterator[core.Metric]:
        text = "Checkpoints that failed, by reason"
        family = core.CounterMetricFamily("acstor_checkpoint_failures", text, labels=["reason"])
        for reason, count in self._daemon.failures.by_reason().items():
            family.add_metric([reason], count)
        yield family
        family = core.CounterMetricFamily(
            "acstor_checkpoint_holder_failures",
            "Checkpoints and deletions that failed at a holder, and why",
            labels=["holder", "reason"],
        )
        for labels, count in self._daemon.failures.by_holder().items():
            family.add_metric(labels, count)
        yield family
        family = core.CounterMetricFamily(
            "acstor_checkpoint_holder_waits",
            "Checkpoints, and parts, in which the other holders waited for this one",
            labels=["holder"],
        )
        for holder, count in self._daemon.failures.waits_by_holder().items():
            family.add_metric([holder], count)
        yield family


def serve(address: str, *collectors: registry.Collector) -> Callable[[], None]:
    """Start the endpoint; return the function that stops it, or raise Unusable."""
    own = prometheus_client.CollectorRegistry()
    for collector in collectors:
        own.register(collector)
    return metrics_endpoint.serve(address, own, "[acstor_checkpoint] metrics_listen")
