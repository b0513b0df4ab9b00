# SPDX-License-Identifier: Apache-2.0
"""The listener service: notifications and reconciles fill a queue for workers, without state."""

import datetime
import functools
import logging
import threading
import time
from typing import NamedTuple

from oslo_config import cfg

from acstor_common import errors
from acstor_common.model import ids
from acstor_common.service import session_options
from acstor_common.service import tracing
from acstor_common.util import log_once
from acstor_common.util import supervision
from acstor_common.wire import decision_messages
from acstor_common.wire import message_bus
from acstor_common.wire import trace_message
from acstor_glance import conf as glance_conf
from acstor_glance import metrics
from acstor_glance import work_queue
from acstor_glance.boot import boot_image_service
from acstor_glance.client import trust_store
from acstor_glance.controller import bus_server
from acstor_glance.controller import hint_queue
from acstor_glance.controller import image_reconciler
from acstor_glance.controller import message_verifier
from acstor_glance.controller import notifications
from acstor_glance.controller import protection_reconciler
from acstor_glance.dedup import base_comparison
from acstor_glance.prepare import image_preparer

LOG = logging.getLogger(__name__)

RECONCILE_INTERVAL_S = 300.0
"""Interval between full passes; a pass over 10,000 images reads 300 pages."""

RETRY_S = 10.0

MAX_TRACED = 10  # attempts of one request
MAX_REQUESTS = 1000  # limit of queued requests of operators; the next reconcile finds the others

BOOT_IMAGE_OUTCOMES = (
    image_preparer.PreparationOutcome.PREPARED,
    image_preparer.PreparationOutcome.NOTHING,
)
"""Outcomes after which an image may get a boot image; the import may have run."""

Rank = work_queue.Rank
SPOOL_AGE_S = 2 * 86400.0
STOP_S = 10.0


class PreparationRequest(NamedTuple):
    """An operator's request to prepare an image, and the headers of its trace."""

    is_forced: bool
    trace: dict[str, str]
    attempts: int = 0

    def next_attempt(self) -> "PreparationRequest":
        """Return the request for another attempt; only the first MAX_TRACED are in its trace."""
        attempts = self.attempts + 1
        trace = self.trace if attempts < MAX_TRACED else {}
        return self._replace(trace=trace, attempts=attempts)


class ListenerService:
    """The service; :meth:`run` returns after :meth:`stop`."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        preparer: image_preparer.ImagePreparer,
        reconciler: image_reconciler.ImageReconciler,
        counters: metrics.ListenerMetrics,
        protection: protection_reconciler.ProtectionReconciler,
        boot_images: boot_image_service.BootImageService | None = None,
        comparer: base_comparison.BaseComparer | None = None,
    ) -> None:
        self._boot_images, self._comparer = boot_images, comparer
        self._trust_store = trust_store.TrustStore(conf)
        self._verifier = message_verifier.MessageVerifier()
        self._protection = protection
        self._conf, self._counters = conf.acstor_glance, counters
        self._preparer, self._reconciler = preparer, reconciler
        self._queue = work_queue.WorkQueue(self._conf.workers)
        self._hints = hint_queue.HintQueue()
        self._hint_fault = log_once.LogOnce(LOG)
        self._listening = notifications.NotificationListener(conf, self._on_notification)
        handlers: dict[str, message_bus.Handler] = {
            decision_messages.IMAGE_WANTED: self._on_request
        }
        if boot_images is not None and boot_images.uses_traces:
            handlers[trace_message.BOOT_TRACED] = lambda sent: boot_images.add_trace(
                self._verifier.verify_trace(sent, self._trust_store.trust_anchors())
            )
        self._server = bus_server.BusServer(conf, handlers)
        self._requests: dict[ids.ImageId, PreparationRequest] = {}
        self._stopping, self._is_due = threading.Event(), threading.Event()

    def run(self) -> None:
        """Serve until :meth:`stop` is called."""
        self._trust_store.start()
        self._protection.start()
        supervision.start("acstor-hints", self._check_hints, self._stopping)
        self._listening.start()
        self._server.start()
        if self._boot_images is not None:
            self._boot_images.start()
        if self._comparer is not None:
            self._comparer.start()
        workers = [
            supervision.start(f"acstor-worker-{number}", self._work, self._stopping)
            for number in range(self._conf.workers)
        ]
        supervision.run("acstor-reconciler", self._reconcile_forever, self._stopping)
        self._trust_store.stop()
        self._protection.stop()
        if self._comparer is not None:
            self._comparer.stop()
        self._listening.stop()
        wait_for_broker = self._server.stop()
        self._hints.close()
        self._queue.close()
        for worker in workers:  # a worker in the middle of an image is abandoned; its lease expires
            worker.join(STOP_S / len(workers))
        if self._boot_images is not None:
            self._boot_images.stop()
        wait_for_broker()

    def _reconcile_forever(self) -> None:
        while not self._stopping.is_set():
            self._wait(self._reconcile())

    def stop(self) -> None:
        """Make :meth:`run` return; safe in signal handlers."""
        self._stopping.set()
        self._is_due.set()

    def _on_notification(self, event_type: str, image_id: ids.ImageId) -> None:
        self._counters.notifications.labels(event_type).inc()
        if image_id in self._protection.needed:
            self._protection.mark_changed(image_id)
        self._hints.queue_image(image_id)

    def _check_hints(self) -> None:
        """Queue the images of hints that exist or are leased, until the hints are closed."""
        while (image_id := self._hints.take_hint()) is not None:
            try:
                if self._preparer.needs_queuing(image_id):
                    self._protection.mark_changed(image_id)
                    self._put(image_id)
                self._hint_fault.log_warning("")
            except errors.AcstorError as exc:
                self._hint_fault.log_warning(
                    f"images that notifications name cannot be read: {exc}"
                )
                self._is_due.set()

    def _on_request(self, payload: object) -> None:
        wanted = self._verifier.verify_request(payload, self._trust_store.trust_anchors())
        image_id = ids.parse_image_id(wanted.image_id)
        if len(self._requests) >= MAX_REQUESTS:
            LOG.warning("image %s: request dropped: %d others are queued", image_id, MAX_REQUESTS)
            return
        LOG.info("image %s: an operator requested its preparation", image_id)
        trace = tracing.trace_headers()
        self._requests[image_id] = PreparationRequest(wanted.is_forced, trace)
        self._put(image_id, Rank.BOOTED)

    def _put(
        self,
        image_id: ids.ImageId,
        rank: Rank = Rank.NEW,
        project: str = work_queue.UNKNOWN_PROJECT,
    ) -> None:
        self._queue.add_image(image_id, rank, project)
        self._show_queue()

    def _wait(self, wait_s: float) -> None:
        if self._is_due.wait(wait_s) and not self._stopping.is_set():
            self._is_due.clear()
            self._stopping.wait(RETRY_S)

    def _reconcile(self) -> float:
        """Reconcile once; return the seconds until the next pass."""
        try:
            findings = self._reconciler.run()
            self._preparer.spool.remove_older(SPOOL_AGE_S)
            self._preparer.leases.remove_older(SPOOL_AGE_S)
        except errors.AcstorError as exc:
            LOG.warning("reconcile: %s", self._error_text(exc))
            self._counters.reconciles.labels("failed").inc()
            return RETRY_S
        except Exception:
            LOG.exception("reconcile: unexpected")
            self._counters.reconciles.labels("failed").inc()
            return RETRY_S
        for image_id in self._requests:
            self._put(image_id, Rank.BOOTED)
        for image_id, project in findings.to_prepare.items():
            self._put(image_id, Rank.OLD, project)
        if self._boot_images is not None:
            self._boot_images.requeue(findings.to_build, self._protection.needed)
        if self._comparer is not None:
            self._comparer.requeue(findings.to_compare)
        self._counters.show_boot_states(findings.boot_states)
        self._counters.deleted_artefacts.inc(len(findings.deleted))
        self._counters.reconciles.labels("whole").inc()
        self._counters.reconciled_at.set(time.time())
        return self._until_next(findings.next_at)

    def _until_next(self, retry_at: datetime.datetime | None) -> float:
        interval_s = RECONCILE_INTERVAL_S
        if retry_at is None:
            return interval_s
        due_s = (retry_at - datetime.datetime.now(datetime.UTC)).total_seconds()
        return min(interval_s, max(due_s, 0.0) + 1.0)

    def _work(self) -> None:
        while (queued := self._queue.take_image()) is not None:
            image_id = queued.image_id
            self._show_queue()
            request = self._requests.pop(image_id, None)
            try:
                outcome = self._prepare(queued, request)
                if outcome is image_preparer.PreparationOutcome.FAILED:
                    self._is_due.set()  # the next pass schedules another attempt
                if outcome is image_preparer.PreparationOutcome.LEASED:
                    self._keep_request(image_id, request)
                elif outcome is image_preparer.PreparationOutcome.QUEUED and request is not None:
                    self._requests.setdefault(image_id, request.next_attempt())
                elif self._boot_images is not None and outcome in BOOT_IMAGE_OUTCOMES:
                    self._boot_images.queue_image(
                        image_id, queued.project, is_requested=request is not None
                    )
                if (
                    self._comparer is not None
                    and outcome is image_preparer.PreparationOutcome.PREPARED
                ):
                    self._comparer.queue_image(image_id)
            except errors.AcstorError as exc:
                LOG.warning("image %s: %s; retrying soon", image_id, self._error_text(exc))
                self._keep_request(image_id, request)
                self._is_due.set()
            except Exception:
                LOG.exception("image %s: unexpected; retrying soon", image_id)
                self._is_due.set()
            finally:
                self._queue.finish_image(image_id)
                self._show_queue()

    def _prepare(
        self, queued: work_queue.QueuedImage, request: PreparationRequest | None
    ) -> image_preparer.PreparationOutcome:
        image_id, trace = queued.image_id, request.trace if request else {}
        with (
            tracing.continue_trace(trace),
            tracing.Span("acstor_image_preparation", image=image_id) as span,
        ):
            outcome = self._preparer.prepare_image(
                image_id,
                is_forced=request is not None and request.is_forced,
                may_begin=functools.partial(self._queue.may_begin, queued),
            )
            span.add_results(outcome=outcome.value)
        LOG.debug("image %s: %s", image_id, outcome)
        return outcome

    def _error_text(self, error: errors.AcstorError) -> str:
        if not isinstance(error, errors.ImageServiceError):
            return str(error)
        group = glance_conf.GROUP.name
        return f"{error} ({session_options.describe(group, self._conf)})"

    def _keep_request(self, image_id: ids.ImageId, request: PreparationRequest | None) -> None:
        if request is not None:
            self._requests.setdefault(image_id, request.next_attempt())
            self._is_due.set()

    def _show_queue(self) -> None:
        waiting, working = self._queue.queue_sizes()
        self._counters.queued_images.set(waiting)
        self._counters.active_images.set(working)
