# SPDX-License-Identifier: Apache-2.0
"""What a listener counts, as Prometheus shows it.

The names are those of ``doc/source/admin/glance.rst`` and never change.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping

import prometheus_client

from acstor_common import artefacts
from acstor_common import metrics_endpoint
from acstor_glance import boot_ways
from acstor_glance import protection


class Counters:
    """One process's counts, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        self.messages = self._counter(
            "acstor_glance_messages", "Notifications of Glance, by event type", ["event"]
        )
        self.images = self._counter(
            "acstor_glance_images", "Images that were looked at, by what came of it", ["outcome"]
        )
        self.hashed_bytes = self._counter(
            "acstor_glance_hashed_bytes", "Bytes of images that were hashed or skipped as holes"
        )
        self.compared_images = self._counter(
            "acstor_glance_compared_images",
            "Images that were compared with their base, by what became of their room in the store",
            ["room"],
        )
        self.shared_bytes = self._counter(
            "acstor_glance_shared_bytes", "Bytes of images that share room with their base now"
        )
        self.deleted_artefacts = self._counter(
            "acstor_glance_deleted_artefacts", "Artefacts deleted because nobody needs them"
        )
        self.reconciles = self._counter(
            "acstor_glance_reconciles", "Passes over all images, by how they ended", ["end"]
        )
        self.reconciled_at = self._gauge(
            "acstor_glance_last_reconcile_timestamp_seconds", "When the last whole pass ended"
        )
        self.waiting = self._gauge("acstor_glance_waiting_images", "Images that wait for a worker")
        self.working = self._gauge("acstor_glance_working_images", "Images that are prepared now")
        self.protections = self._counter(
            "acstor_glance_protections", "Protections of images, set or taken back", ["change"]
        )
        self.needed = self._gauge(
            "acstor_glance_needed_images",
            "Images that hosts use and have not all of, by who protects them",
            ["protection"],
        )
        self.guarded_at = self._gauge(
            "acstor_glance_last_protection_timestamp_seconds",
            "When the last whole pass over the needed images ended",
        )
        self.protects = self._gauge(
            "acstor_glance_protects_images", "Whether needed images are protected: 1, or 0"
        )

        self.boot_images_made = self._gauge(
            "acstor_glance_boot_images_made",
            "Whether this listener makes boot images in a way: 1, or 0",
            ["way"],
        )
        self.boot_images = self._gauge(
            "acstor_glance_boot_images", "Images by how far their boot image is", ["state"]
        )
        self.boot_images_waiting = self._gauge(
            "acstor_glance_waiting_boot_images",
            "Images that wait for this listener to look at their boot image",
        )

    def show_ways(self, ways: boot_ways.Ways) -> None:
        """Show in which ways boot images are made here."""
        self.boot_images_made.labels("built").set(ways.builds)
        self.boot_images_made.labels("recorded").set(ways.records)

    def show_boot_states(self, counted: Mapping[artefacts.BootState, int]) -> None:
        """Show how far boot images are."""
        for state in artefacts.BootState:
            self.boot_images.labels(state.value).set(counted.get(state, 0))

    def show_needed(self, standings: Iterable[protection.Standing | None]) -> None:
        """Show how the needed images stand."""
        counted = collections.Counter(standings)
        for standing in (*protection.Standing, None):
            label = standing.value if standing else "unknown"
            self.needed.labels(label).set(counted[standing])

    def serve(self, address: str) -> Callable[[], None]:
        """Start the Prometheus endpoint in a thread; return what stops it.

        :raises errors.Unusable: the address cannot be used
        """
        return metrics_endpoint.serve(address, self.registry, "[acstor_glance] metrics_listen")

    def _counter(
        self, name: str, text: str, labels: tuple[str, ...] | list[str] = ()
    ) -> prometheus_client.Counter:
        return prometheus_client.Counter(name, text, labels, registry=self.registry)

    def _gauge(
        self, name: str, text: str, labels: tuple[str, ...] | list[str] = ()
    ) -> prometheus_client.Gauge:
        return prometheus_client.Gauge(name, text, labels, registry=self.registry)
