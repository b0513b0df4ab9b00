# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics of a listener; ``doc/source/admin/glance.rst`` explains some."""

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping

import prometheus_client

from acstor_common.image import artefacts
from acstor_common.service import metrics_endpoint
from acstor_glance import deletion_protection


class ListenerMetrics:
    """The metrics of one listener process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        self.notifications = self._counter(
            "acstor_glance_notifications", "Notifications from Glance, by event type", ["event"]
        )
        self.processed_images = self._counter(
            "acstor_glance_processed_images", "Images processed, by outcome", ["outcome"]
        )
        self.hashed_bytes = self._counter(
            "acstor_glance_hashed_bytes", "Bytes of images hashed or skipped as holes"
        )
        self.compared_images = self._counter(
            "acstor_glance_compared_images",
            "Images compared with their backing image, by the result of deduplication",
            ["result"],
        )
        self.shared_bytes = self._counter(
            "acstor_glance_deduplicated_bytes",
            "Bytes of images that now share blocks with their backing image",
        )
        self.deleted_artefacts = self._counter(
            "acstor_glance_deleted_artefacts", "Artefacts deleted because no image needs them"
        )
        self.reconciles = self._counter(
            "acstor_glance_reconciles", "Reconciliations of all images, by result", ["result"]
        )
        self.reconciled_at = self._gauge(
            "acstor_glance_last_reconcile_timestamp_seconds",
            "End of the last complete reconciliation",
        )
        self.queued_images = self._gauge(
            "acstor_glance_queued_images", "Images in the queue of the workers"
        )
        self.active_images = self._gauge("acstor_glance_active_images", "Images in preparation")
        self._add_protection()
        self._add_boot_images()

    def _add_protection(self) -> None:
        self.protection_changes = self._counter(
            "acstor_glance_protection_changes", "Protections of images set or removed", ["change"]
        )
        self.needed_images = self._gauge(
            "acstor_glance_needed_images",
            "Images that hosts use and have not fully cached, by protection",
            ["protection"],
        )
        self.protection_pass_at = self._gauge(
            "acstor_glance_last_protection_timestamp_seconds",
            "End of the last complete pass over the needed images",
        )
        self.protection_enabled = self._gauge(
            "acstor_glance_protection_enabled",
            "Whether the listener protects needed images: 1, or 0",
        )

    def _add_boot_images(self) -> None:
        self.boot_image_methods = self._gauge(
            "acstor_glance_boot_image_method_enabled",
            "Whether this listener makes boot images by this method: 1, or 0",
            ["method"],
        )
        self.boot_images = self._gauge(
            "acstor_glance_boot_images", "Images by the state of their boot image", ["state"]
        )
        self.queued_boot_images = self._gauge(
            "acstor_glance_queued_boot_images",
            "Images in the queue for boot images",
        )

    def show_build_modes(self, modes: tuple[bool, bool]) -> None:
        """Show which methods make boot images; ``modes``: builds, records."""
        for mode, is_on in zip(("built", "recorded"), modes, strict=True):
            self.boot_image_methods.labels(mode).set(is_on)

    def show_boot_states(self, counts: Mapping[artefacts.BootState, int]) -> None:
        """Show the number of images in each state of their boot image."""
        for state in artefacts.BootState:
            self.boot_images.labels(state.value).set(counts.get(state, 0))

    def show_needed(self, statuses: Iterable[deletion_protection.ProtectionStatus | None]) -> None:
        """Show the number of needed images by protection status; None: status unknown."""
        counts = collections.Counter(statuses)
        for status in (*deletion_protection.ProtectionStatus, None):
            label = status.value if status else "unknown"
            self.needed_images.labels(label).set(counts[status])

    def serve(self, address: str) -> Callable[[], None]:
        """Start the Prometheus endpoint in a thread; return a function that stops it."""
        return metrics_endpoint.serve(address, self.registry, "[acstor_glance] metrics_listen")

    def _counter(
        self, name: str, help_text: str, labels: tuple[str, ...] | list[str] = ()
    ) -> prometheus_client.Counter:
        return prometheus_client.Counter(name, help_text, labels, registry=self.registry)

    def _gauge(
        self, name: str, help_text: str, labels: tuple[str, ...] | list[str] = ()
    ) -> prometheus_client.Gauge:
        return prometheus_client.Gauge(name, help_text, labels, registry=self.registry)
