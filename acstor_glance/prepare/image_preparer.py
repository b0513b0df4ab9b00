# SPDX-License-Identifier: Apache-2.0
"""Executes the plans of images, and records the results in their properties."""

import datetime
import enum
import logging
from collections.abc import Callable

from oslo_config import cfg

from acstor_common import errors
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_glance import conf as glance_conf
from acstor_glance import metrics
from acstor_glance.client import artefact_quota
from acstor_glance.client import glance_client
from acstor_glance.client import scope_lookup
from acstor_glance.client import work_leases
from acstor_glance.prepare import image_preparation
from acstor_glance.prepare import map_spool
from acstor_glance.prepare import plan
from acstor_glance.prepare import prehash

LOG = logging.getLogger(__name__)

CHUNK_MAP = artefacts.Kind.CHUNK_MAP

Progress = prehash.Progress
MayBegin = Callable[[str], bool]
"""Called with the project of an image to prepare; returns whether to begin now."""


class PreparationOutcome(enum.StrEnum):
    """Result of handling an image; a label of a metric."""

    NOTHING = "nothing"
    PREPARED = "prepared"
    REFUSED = "refused"
    FAILED = "failed"
    WAITING = "waiting"
    LEASED = "leased"  # another process holds its lease
    QUEUED = "queued"  # until its project's turn
    GONE = "gone"


class ImagePreparer:
    """Prepares images, one per thread; ImageServiceUnreachable without Glance or lease service."""

    def __init__(
        self,
        images: glance_client.GlanceClient,
        conf: cfg.ConfigOpts,
        counters: metrics.ListenerMetrics | None = None,
        *,
        limits: image_preparation.PreparationLimits = image_preparation.PREPARATION_LIMITS,
    ) -> None:
        own, state_dir = conf.acstor_glance, glance_conf.state_dir(conf)
        self._images, self._counters = images, counters or metrics.ListenerMetrics()
        version = glance_client.FORMAT_VERSIONS[CHUNK_MAP]
        self.desired = plan.DesiredArtefacts({CHUNK_MAP: version}, tuple(own.convert_formats))
        self.scopes = scope_lookup.ScopeLookup(images, conf)
        self.spool = map_spool.MapSpool(state_dir)
        self.leases = work_leases.WorkLeases(own.coordination_url, state_dir, CHUNK_MAP.value)
        self._tools = image_preparation.PreparationTools(
            images,
            own,
            self.scopes,
            artefact_quota.ArtefactQuota(images, conf),
            self.spool,
            self._counters,
            limits,
        )

    def prepare_image(
        self,
        image_id: ids.ImageId,
        *,
        is_forced: bool = False,  # despite a chunk map or a failure
        progress: Progress = lambda done_bytes: None,
        may_begin: MayBegin = lambda project: True,
    ) -> PreparationOutcome:
        """Execute the image's plan, unless another process holds its lease."""
        with self.leases.lease_image(image_id) as is_ours:
            if is_ours:
                return self.prepare_leased(
                    image_id, is_forced=is_forced, progress=progress, may_begin=may_begin
                )
        return self._counted(PreparationOutcome.LEASED)

    def prepare_leased(
        self,
        image_id: ids.ImageId,
        *,
        is_forced: bool = False,
        progress: Progress = lambda done_bytes: None,
        may_begin: MayBegin = lambda project: True,
    ) -> PreparationOutcome:
        """Execute the image's plan; the caller holds its lease."""
        try:
            image = self._images.get_image(image_id)
            find, project_id = self._images.read_or_none, self._images.project_id
            todo = plan.plan_image(
                image, find, project_id, self.desired, _now(), is_forced=is_forced
            )
            if todo.step is plan.Step.REFUSE:
                outcome = self._refuse(image, todo.why)
            elif todo.step is plan.Step.PREPARE:
                if not may_begin(image.owner):
                    return PreparationOutcome.QUEUED
                outcome = self._attempt(image, todo.retry, is_forced, progress)
            else:
                is_waiting = todo.step is plan.Step.WAIT
                outcome = PreparationOutcome.WAITING if is_waiting else PreparationOutcome.NOTHING
        except errors.ImageGone:
            outcome = PreparationOutcome.GONE
            for artefact in list(self._images.list_artefacts(image_id)):
                LOG.info("artefact %s: deleted with its image %s", artefact.id, image_id)
                self._images.delete_artefact(artefact.id)
                self._counters.deleted_artefacts.inc()
            self.spool.remove(image_id)
        return self._counted(outcome)

    def needs_queuing(self, image_id: ids.ImageId) -> bool:
        """Return whether an image exists or is leased; if not, delete its artefacts."""
        if self._images.read_or_none(image_id) is not None:
            return True
        return self.prepare_image(image_id) is PreparationOutcome.LEASED

    def _counted(self, outcome: PreparationOutcome) -> PreparationOutcome:
        self._counters.processed_images.labels(outcome.value).inc()
        return outcome

    def _attempt(
        self, image: image_record.Image, before: plan.Retry, is_forced: bool, progress: Progress
    ) -> PreparationOutcome:
        try:
            image_preparation.ImagePreparation(
                image, self._tools, is_forced=is_forced, progress=progress
            ).run()
        except errors.NotRaw as exc:
            return self._refuse(image, f"{exc.why}. {exc.remedy}", str(plan.Retry(1, None)))
        except errors.LimitExceeded as exc:
            return self._fail(image, f"{exc.why}. {exc.remedy}", plan.Retry(1, None))
        except (errors.ImageServiceError, errors.Unusable, errors.FormatError) as exc:
            return self._fail(image, str(exc), before.after_failure(_now()))
        return PreparationOutcome.PREPARED

    def _refuse(self, image: image_record.Image, why: str, retry: str = "") -> PreparationOutcome:
        LOG.info("image %s is not served: %s", image.id, why)
        pointers = {kind.pointer: "" for kind in artefacts.Kind}
        properties = artefacts.state_properties(image.id, artefacts.State.REFUSED, why, retry)
        self._images.set_properties(image.id, {**pointers, **properties})
        self.spool.remove(image.id)
        return PreparationOutcome.REFUSED

    def _fail(self, image: image_record.Image, why: str, retry: plan.Retry) -> PreparationOutcome:
        LOG.warning("image %s could not be prepared (attempt and next: %s): %s",
                    image.id, retry, why)  # fmt: skip
        properties = artefacts.state_properties(image.id, artefacts.State.FAILED, why, str(retry))
        self._images.set_properties(image.id, properties)
        return PreparationOutcome.FAILED


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
