# SPDX-License-Identifier: Apache-2.0
"""The Prometheus endpoint: what the vault keeps, and how checkpoints of this host's servers go.

What is shown is read when it is asked for, and nothing waits for who asks.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Protocol

import prometheus_client
from prometheus_client import core
from prometheus_client import registry

from acstor_checkpoint import failures as failures_
from acstor_checkpoint import room as room_
from acstor_checkpoint import scrubbing
from acstor_checkpoint import vault as vault_
from acstor_common import ids
from acstor_common import metrics_endpoint


class VaultCollector(registry.Collector):
    """Shows a vault."""

    def __init__(self, vault: vault_.Vault) -> None:
        self._vault = vault

    def collect(self) -> Iterator[core.Metric]:
        """Yield what the vault is like now."""
        room = self._vault.room
        used, limits = room.used(), room.limits
        for name, text, value in (
            ("used_bytes", "What is kept, on disk", sum(one.size_bytes for one in used.values())),
            (
                "inodes",
                "Files and folders that are kept",
                sum(one.inodes for one in used.values()),
            ),
            ("hosts", "Hosts of which something is kept", len(used)),
            ("full_hosts", "Hosts that have used up their quota", room.full_hosts()),
            ("limit_bytes", "What may be kept", limits.total_bytes),
            ("limit_inodes", "How many files and folders may be kept", limits.inodes),
            (
                "is_safe",
                "Whether what is put is safe on the disk",
                not self._vault.safety.has_failed,
            ),
            (
                "scrubbed_timestamp_seconds",
                "When all of it had been read the last time; 0: never",
                scrubbing.ended_s(self._vault.folder) or 0.0,
            ),
        ):
            yield core.GaugeMetricFamily(f"acstor_vault_{name}", text, value)
        refused = core.CounterMetricFamily(
            "acstor_vault_refused",
            "Files and folders for which there was no room, by the bound that was reached",
            labels=["bound"],
        )
        for bound in room_.Bound:
            refused.add_metric([bound], room.refused[bound])
        yield refused
        yield core.SummaryMetricFamily(
            "acstor_vault_sync_seconds",
            "How long the disk took to make safe what was put",
            self._vault.safety.passes,
            self._vault.safety.took_s,
        )
        for name, text, value in (
            ("spoilt", "Files that were not what was put, and were removed", self._vault.spoilt),
            (
                "throttled_seconds",
                "How long requests of hosts waited that had too many names looked up",
                self._vault.lookups.waited_s,
            ),
        ):
            yield core.CounterMetricFamily(f"acstor_vault_{name}", text, value)


class Takes(Protocol):
    """Takes checkpoints; each method may be called by any thread."""

    failures: failures_.Failures

    def overdue_s(self) -> Mapping[ids.ImageId, float]:
        """Return for how long servers have waited beyond their intervals."""

    def taking_s(self) -> Mapping[ids.ImageId, float]:
        """Return how long the checkpoints that are on have taken."""


class TakingCollector(registry.Collector):
    """Shows how checkpoints go.

    :param by_server: for each server, instead of the longest times
    """

    def __init__(self, daemon: Takes, by_server: bool = False) -> None:
        self._daemon, self._by_server = daemon, by_server

    def collect(self) -> Iterator[core.Metric]:
        """Yield who waits for how long, what is on, and what failed."""
        for name, text, found in (
            (
                "overdue_seconds",
                "How long a server has waited for a checkpoint beyond its interval",
                self._daemon.overdue_s(),
            ),
            (
                "taking_seconds",
                "How long a server's disk has been read, while it cannot be moved",
                self._daemon.taking_s(),
            ),
        ):
            labels = ["server"] if self._by_server else []
            family = core.GaugeMetricFamily(f"acstor_checkpoint_{name}", text, labels=labels)
            if self._by_server:
                for server, seconds in found.items():
                    family.add_metric([server], seconds)
            else:
                family.add_metric([], max(found.values(), default=0.0))
            yield family
        yield from self._failed()

    def _failed(self) -> Iterator[core.Metric]:
        text = "Checkpoints that failed"
        family = core.CounterMetricFamily("acstor_checkpoint_failures", text, labels=["reason"])
        for reason, count in self._daemon.failures.by_reason().items():
            family.add_metric([reason], count)
        yield family
        family = core.CounterMetricFamily(
            "acstor_checkpoint_holder_failures",
            "Checkpoints that failed by a holder, and why",
            labels=["holder", "reason"],
        )
        for labels, count in self._daemon.failures.by_holder().items():
            family.add_metric(labels, count)
        yield family


def serve(address: str, *collectors: registry.Collector) -> Callable[[], None]:
    """Start the endpoint in a thread; return what stops it.

    :raises errors.Unusable: the address cannot be used
    """
    own = prometheus_client.CollectorRegistry()
    for collector in collectors:
        own.register(collector)
    return metrics_endpoint.serve(address, own, "[acstor_checkpoint] metrics_listen")
