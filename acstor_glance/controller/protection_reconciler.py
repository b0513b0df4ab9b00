# SPDX-License-Identifier: Apache-2.0
"""Protects images that hosts need against deletion (:mod:`deletion_protection`)."""

import collections
import contextlib
import datetime
import logging
import socket
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator

import msgspec
from oslo_config import cfg

from acstor_common import errors
from acstor_common.image import image_record
from acstor_common.model import clocks
from acstor_common.model import ids
from acstor_common.util import log_once
from acstor_common.util import supervision
from acstor_common.wire import decision_messages
from acstor_glance import conf as glance_conf
from acstor_glance import deletion_protection
from acstor_glance import metrics
from acstor_glance.client import decision_client
from acstor_glance.client import glance_client
from acstor_glance.client import work_leases

LOG = logging.getLogger(__name__)

PASS_S = 5.0
REPORT_S = 30.0
IMAGES_PER_PASS = 50
MAX_FAILURES = 3
"""Unreachable answers that end a pass; refusals do not count, since a tenant can cause them."""
MAX_LOGGED = 10
MAX_ANSWER_BYTES = 1 << 20
ALL_IMAGES = ids.parse_image_id("00000000-0000-0000-0000-000000000000")
"""Lease of the pass over all images."""

_WARNINGS = {
    deletion_protection.ProtectionStatus.DECLINED: "a user removed acstor's protection, which is "
    "not set again; data that hosts lack is lost when the image is deleted",
    deletion_protection.ProtectionStatus.GONE: "it is no longer in Glance, and hosts that use "
    "it lack data of it",
    deletion_protection.ProtectionStatus.ARTEFACT: "hosts report that servers use it, but it is an "
    "artefact: a host reports wrong data",
    deletion_protection.ProtectionStatus.FAILED: "it could not be protected; retrying soon",
}


class ListenerReport(msgspec.Struct, frozen=True):
    """A listener, as the decision service knows it."""

    listener: str
    reported_at: datetime.datetime
    is_silent: bool


class ListenerReports(msgspec.Struct, frozen=True):
    """Answer of ``GET /v1/listeners``."""

    listeners: list[ListenerReport]


def fetch_listeners(service: decision_client.DecisionClient) -> list[ListenerReport]:
    """Return the listeners that have reported."""
    return service.get("/v1/listeners", ListenerReports, MAX_ANSWER_BYTES).listeners


def fetch_needed(service: decision_client.DecisionClient) -> decision_messages.NeededImages:
    """Return the images that hosts need."""
    return service.get("/v1/needed-images", decision_messages.NeededImages, MAX_ANSWER_BYTES)


class ProtectionReconciler:
    """Makes passes in a thread."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        images: glance_client.GlanceClient,
        counters: metrics.ListenerMetrics | None = None,
        clock: clocks.Clock = time,
        *,
        images_per_pass: int = IMAGES_PER_PASS,
    ) -> None:
        own = conf.acstor_glance
        self._images_per_pass = images_per_pass
        self._is_enabled = bool(own.protect_used_images)
        self.needed: frozenset[str] = frozenset()
        """Images that hosts use without having fully cached them, by the last answer."""
        self._images, self._counters, self._clock = images, counters, clock
        self._service = decision_client.DecisionClient(conf)
        folder = glance_conf.state_dir(conf)
        self._leases = work_leases.WorkLeases(own.coordination_url, folder, "protection")
        self._known = deletion_protection.ProtectionState()
        self._relist_at_s = float("-inf")
        self._logged: dict[str, deletion_protection.ProtectionStatus] = {}
        self._notified: collections.deque[str] = collections.deque(maxlen=1000)
        self._fault = log_once.LogOnce(LOG)
        self._incomplete = log_once.LogOnce(LOG)
        self._report_at_s = float("-inf")
        self._unreported = log_once.LogOnce(LOG)
        self._stopping = threading.Event()
        if counters is not None:
            counters.protection_enabled.set(int(self._is_enabled))

    def start(self) -> None:
        """Start the thread."""
        supervision.start("acstor-guard", self._run, self._stopping)

    def stop(self) -> None:
        """Make no more passes."""
        self._stopping.set()

    def mark_changed(self, image_id: ids.ImageId) -> None:
        """Record a notification about an image; thread-safe."""
        self._notified.append(image_id)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._report_if_due()
            try:
                self.run_pass()
            except errors.AcstorError as exc:
                self._fault.log_warning(f"the needed images cannot be protected now: {exc}")
            except Exception:
                LOG.exception("protection of images: unexpected")
            else:
                self._fault.log_warning("")
            self._stopping.wait(PASS_S)

    def _report_if_due(self) -> None:
        if self._clock.monotonic() < self._report_at_s:
            return
        self._report_at_s = self._clock.monotonic() + REPORT_S
        try:
            report = {"listener": socket.gethostname()}
            self._service.post("/v1/listeners", report, ListenerReports, MAX_ANSWER_BYTES)
        except errors.AcstorError as exc:
            self._unreported.log_warning(
                f"this listener cannot report to the decision service: {exc}"
            )
        else:
            self._unreported.log_warning("")

    def run_pass(self) -> None:
        """Protect needed images, and remove other protection; raises ImageServiceError."""
        needed = fetch_needed(self._service) if self._is_enabled else None
        self.needed = frozenset(needed.images if needed else ())
        with self._leased() as is_ours:
            if not is_ours:
                return
            if needed is None:
                self._list_if_due()
                self._remove_all()
                return
            self._protect(needed)
        if self._counters is not None:
            self._counters.protection_pass_at.set(time.time())

    def _protect(self, needed: decision_messages.NeededImages) -> None:
        while self._notified:
            self._known.mark_changed(self._notified.popleft())
        self._known.set_needed(needed, self._clock.monotonic())
        self._incomplete.log_warning(
            ""
            if needed.is_complete
            else f"more than {len(needed.images)} images are needed: the others are not protected, "
            "and no protection is removed"
        )
        try:
            self._for_each(
                self._known.images_to_check(self._clock.monotonic()), self._update_protection
            )
            self._list_if_due()
        finally:
            self._report_statuses()

    @contextlib.contextmanager
    def _leased(self) -> Iterator[bool]:
        """Yield whether to make a pass; True if the lease service fails: two passes do no harm."""
        with contextlib.ExitStack() as stack:
            try:
                is_ours = stack.enter_context(self._leases.lease_image(ALL_IMAGES))
            except errors.ImageServiceUnreachable as exc:
                LOG.debug("%s; continuing without a lease", exc)
                is_ours = True
            yield is_ours

    def _list_if_due(self) -> None:
        if self._clock.monotonic() < self._relist_at_s:
            return
        project_id = self._images.project_id
        found: dict[str, float] = {
            record.id: deletion_protection.protection_time_s(record, project_id) or 0.0
            for record in self._images.list_images(protected="true")
            if deletion_protection.protection_of(record, project_id)
            is deletion_protection.ProtectionStatus.OURS
        }
        self._known.set_protected(found, self._clock.monotonic())
        self._relist_at_s = self._clock.monotonic() + deletion_protection.RELIST_S

    def _for_each(self, image_ids: list[str], action: Callable[[str], None]) -> None:
        failures = 0
        for image_id in image_ids[: self._images_per_pass]:
            try:
                action(image_id)
            except errors.ImageServiceError as exc:
                LOG.info("image %s: %s", image_id, exc)
                self._known.mark_failed(image_id, self._clock.monotonic())
                failures += isinstance(exc, errors.ImageServiceUnreachable)
                if failures >= MAX_FAILURES:
                    raise

    def _update_protection(self, image_id: str) -> None:
        record = self._images.read_or_none(image_id)
        self._known.update_image(image_id, record, self._images.project_id)
        change = self._known.plan_change(image_id, self._clock.monotonic())
        if record is not None and change is not None:
            self._change(record, change)

    def _remove_all(self) -> None:
        self._for_each(
            sorted(self._known.list_protected(self._clock.monotonic())), self._remove_protection
        )

    def _remove_protection(self, image_id: str) -> None:
        record, project_id = self._images.read_or_none(image_id), self._images.project_id
        self._known.update_image(image_id, record, project_id)
        is_ours = (
            deletion_protection.protection_of(record, project_id)
            is deletion_protection.ProtectionStatus.OURS
        )
        if record is not None and is_ours:
            self._change(record, deletion_protection.Change.REMOVE)

    def _change(self, record: image_record.Image, change: deletion_protection.Change) -> None:
        """Change an image that was read just now, or changes by others would be lost."""
        project_id = self._images.project_id
        tags = deletion_protection.tags_after(
            change, record, project_id, self._known.service_time_s()
        )
        is_record = change is deletion_protection.Change.RECORD_REMOVAL
        is_protected = None if is_record else change is deletion_protection.Change.SET
        try:
            changed = self._images.set_protection(record, tags, is_protected)
        except errors.ImageGone:
            self._known.update_image(record.id, None, project_id)
            return
        self._known.update_image(record.id, changed, project_id)
        self._count(record.id, change)

    def _count(self, image_id: str, change: deletion_protection.Change) -> None:
        LOG.info("image %s: protection against deletion %s", image_id, change.value)
        if self._counters is not None:
            self._counters.protection_changes.labels(change.name.lower()).inc()

    def _report_statuses(self) -> None:
        statuses = self._known.list_statuses()
        for image_id in self._logged.keys() - statuses.keys():
            del self._logged[image_id]
        news = {
            image_id: status
            for image_id, status in statuses.items()
            if status in _WARNINGS and self._logged.get(image_id) is not status
        }
        for image_id, status in list(news.items())[:MAX_LOGGED]:
            LOG.warning("image %s: %s", image_id, _WARNINGS[status])
        if len(news) > MAX_LOGGED:
            LOG.warning(
                "%d more images have such problems; the command check names them",
                len(news) - MAX_LOGGED,
            )
        self._logged |= news
        if self._counters is not None:
            self._counters.show_needed(statuses.values())
