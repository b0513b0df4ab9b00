# SPDX-License-Identifier: Apache-2.0
"""Reconciliation: one pass over all images and artefacts in Glance."""

import collections
import dataclasses
import datetime
import logging
import sys
from collections.abc import Mapping

from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_glance.client import glance_client
from acstor_glance.prepare import plan

LOG = logging.getLogger(__name__)

BootState = artefacts.BootState


@dataclasses.dataclass
class Findings:
    """Findings and actions of a pass.

    :param to_prepare: projects by image, in Glance's order: newest first, hidden ones last
    :param to_compare: images to compare with their backing image, or to deduplicate with it
    """

    images: int = 0
    artefacts: int = 0
    to_prepare: dict[ids.ImageId, str] = dataclasses.field(default_factory=dict)
    to_build: dict[ids.ImageId, str] = dataclasses.field(default_factory=dict)
    to_compare: list[ids.ImageId] = dataclasses.field(default_factory=list)
    boot_states: collections.Counter[BootState] = dataclasses.field(
        default_factory=collections.Counter
    )
    waiting: int = 0
    next_at: datetime.datetime | None = None
    deleted: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.images} images, {len(self.to_prepare)} to do, {len(self.to_build)} to boot, "
            f"{self.waiting} wait for their next attempt; {self.artefacts} artefacts, "
            f"{len(self.deleted)} deleted"
        )


class ImageReconciler:
    """Compares Glance's artefacts with the desired ones."""

    def __init__(
        self,
        images: glance_client.GlanceClient,
        desired: plan.DesiredArtefacts,
        *,
        builds_boot_images: bool,
    ) -> None:
        self._images, self._desired, self._builds_boot_images = images, desired, builds_boot_images

    def run(self) -> Findings:
        """Make one pass; delete orphaned artefacts after another look at their image."""
        now, project_id = datetime.datetime.now(datetime.UTC), self._images.project_id
        findings = Findings()
        # Artefacts first: an image created in between then seems to lack one, which costs a look,
        # whereas an artefact would seem to be an orphan.
        left = self._artefacts_by_image(findings)
        orphans: list[image_record.Image] = []
        for image in self._images.list_images():
            if artefacts.is_artefact(image, project_id):
                continue
            findings.images += 1
            own = {candidate.id: candidate for candidate in left.pop(image.id, ())}
            orphans += (
                candidate for candidate in own.values() if _is_orphan(candidate, image, now)
            )
            self._look_at(image, own, now, findings)
        orphans += (
            candidate
            for some in left.values()
            for candidate in some
            if _is_orphan(candidate, None, now)
        )
        for artefact in orphans:
            self._delete_orphan(artefact, now, findings)
        LOG.info("reconcile: %s", findings)
        return findings

    def _artefacts_by_image(self, findings: Findings) -> dict[str, list[image_record.Image]]:
        by_image: dict[str, list[image_record.Image]] = {}
        for artefact in self._images.list_artefacts():
            findings.artefacts += 1
            by_image.setdefault(artefact.text(artefacts.OF_IMAGE), []).append(_reduced(artefact))
        return by_image

    def _look_at(
        self,
        image: image_record.Image,
        found: Mapping[ids.ImageId, image_record.Image],
        now: datetime.datetime,
        findings: Findings,
    ) -> None:
        todo = plan.plan_image(image, found.get, self._images.project_id, self._desired, now)
        if todo.step in (plan.Step.PREPARE, plan.Step.REFUSE):
            findings.to_prepare[image.id] = image.owner
        elif todo.step is plan.Step.WAIT:
            _wait(findings, todo.retry.at)
        else:
            self._look_at_boot_image(image, found, now, findings)
            if plan.is_comparison_due(image):
                findings.to_compare.append(image.id)

    def _look_at_boot_image(
        self,
        image: image_record.Image,
        found: Mapping[ids.ImageId, image_record.Image],
        now: datetime.datetime,
        findings: Findings,
    ) -> None:
        state = artefacts.boot_state_of(image)
        if state is not None:
            findings.boot_states[state] += 1
        if self._builds_boot_images:
            build = plan.next_boot_image_build(image, found.get, self._images.project_id)
            if build is not None and build.is_due(now):
                findings.to_build[image.id] = image.owner
            elif build is not None:
                _wait(findings, build.at)

    def _delete_orphan(
        self, artefact: image_record.Image, now: datetime.datetime, findings: Findings
    ) -> None:
        of_image = artefact.text(artefacts.OF_IMAGE)
        latest = self._images.read_or_none(of_image) if of_image else None
        if why := plan.why_orphan(artefact, latest, now, plan.ORPHAN_GRACE_S):
            LOG.info("artefact %s: deleted, because %s", artefact.id, why)
            self._images.delete_artefact(artefact.id)
            findings.deleted.append(artefact.id)


def _is_orphan(
    artefact: image_record.Image, image: image_record.Image | None, now: datetime.datetime
) -> bool:
    return bool(plan.why_orphan(artefact, image, now, plan.ORPHAN_GRACE_S))


def _reduced(artefact: image_record.Image) -> image_record.Image:
    own = {name: artefact.text(name) for name in plan.UNIQUE_PROPERTIES}
    shared = {name: sys.intern(artefact.text(name)) for name in plan.SHARED_PROPERTIES}
    return image_record.Image(
        id=artefact.id,
        created_at=artefact.created_at,
        owner=sys.intern(artefact.owner),
        status=sys.intern(artefact.status),
        properties={name: text for name, text in (own | shared).items() if text},
    )


def _wait(findings: Findings, at: datetime.datetime | None) -> None:
    findings.waiting += 1
    if at is not None:
        findings.next_at = min(at, findings.next_at or at)
