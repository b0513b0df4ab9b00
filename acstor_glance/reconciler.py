# SPDX-License-Identifier: Apache-2.0
"""One pass over all images and all artefacts, for what no message told.

The one rule: a pass only finds; images are prepared by whoever takes them from
the list it returns, and an artefact is deleted only after one more look at the
image that it names.
"""

import collections
import dataclasses
import datetime
import logging

from acstor_common import artefacts
from acstor_common import ids
from acstor_common import image_record
from acstor_glance import images as glance_images
from acstor_glance import plan

LOG = logging.getLogger(__name__)

BootState = artefacts.BootState


@dataclasses.dataclass
class Findings:
    """What a pass found and did.

    :param to_boot: images whose boot image is to be built now, the youngest first
    :param boot_states: how many images' boot images are how far
    :param next_at: when the first of the images that wait may be tried again
    """

    images: int = 0
    artefacts: int = 0
    todo: list[ids.ImageId] = dataclasses.field(default_factory=list)
    to_boot: list[ids.ImageId] = dataclasses.field(default_factory=list)
    boot_states: collections.Counter[BootState] = dataclasses.field(
        default_factory=collections.Counter
    )
    waiting: int = 0
    next_at: datetime.datetime | None = None
    deleted: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.images} images, {len(self.todo)} to do, {len(self.to_boot)} to boot, "
            f"{self.waiting} wait for their next attempt; {self.artefacts} artefacts, "
            f"{len(self.deleted)} deleted"
        )


class Reconciler:
    """Compares what there is with what there should be.

    :param wanted: what each image should have (:attr:`Preparer.wanted`)
    :param builds: boot images are built here
    """

    def __init__(
        self,
        images: glance_images.Images,
        wanted: plan.Wanted,
        *,
        builds: bool,
    ) -> None:
        self._images, self._wanted, self._builds = images, wanted, builds

    def run(self) -> Findings:
        """Go through everything once; delete artefacts that nobody needs.

        :raises errors.ImageServiceError: Glance is away or refuses
        """
        now = datetime.datetime.now(datetime.UTC)
        # Artefacts first: an image that appears in between then looks as if it had none, which
        # costs a look, not an artefact.
        found = {record["id"]: record for record in self._images.every_artefact()}
        images = {record["id"]: record for record in self._images.every()}
        findings = Findings(images=len(images) - len(found.keys() & images.keys()))
        findings.artefacts = len(found)
        for image in sorted(images.values(), key=_made_at, reverse=True):
            self._look_at(image, found, now, findings)
        for artefact in found.values():
            self._delete_orphan(artefact, images, now, findings)
        LOG.info("reconcile: %s", findings)
        return findings

    def _look_at(
        self,
        image: image_record.Record,
        found: dict[str, image_record.Record],
        now: datetime.datetime,
        findings: Findings,
    ) -> None:
        todo = plan.plan_image(image, found, self._images.project_id, self._wanted, now)
        if todo.step in (plan.Step.PREPARE, plan.Step.REFUSE):
            findings.todo.append(image_record.image_id_of(image))
        elif todo.step is plan.Step.WAIT:
            _wait(findings, todo.at)
        else:
            self._look_at_boot_image(image, found, now, findings)

    def _look_at_boot_image(
        self,
        image: image_record.Record,
        found: dict[str, image_record.Record],
        now: datetime.datetime,
        findings: Findings,
    ) -> None:
        state = artefacts.boot_state_of(image)
        if state is not None:
            findings.boot_states[state] += 1
        if self._builds:
            build = plan.next_build(image, found, self._images.project_id)
            if build is not None and build.at is not None and build.at <= now:
                findings.to_boot.append(image_record.image_id_of(image))
            elif build is not None:
                _wait(findings, build.at)

    def _delete_orphan(
        self,
        artefact: image_record.Record,
        images: dict[str, image_record.Record],
        now: datetime.datetime,
        findings: Findings,
    ) -> None:
        grace_s = plan.ORPHAN_GRACE_S
        if not plan.why_orphan(artefact, images, now, grace_s):
            return
        of_image = image_record.text_of(artefact, artefacts.OF_IMAGE)
        latest = self._images.read_or_none(of_image) if of_image else None
        why = plan.why_orphan(artefact, {of_image: latest} if latest else {}, now, grace_s)
        if why:
            LOG.info("artefact %s: deleted, because %s", artefact["id"], why)
            self._images.delete(artefact["id"])
            findings.deleted.append(artefact["id"])


def _made_at(image: image_record.Record) -> str:
    """Return when an image was made, as Glance writes it (UTC, ISO 8601)."""
    return image_record.text_of(image, "created_at")


def _wait(findings: Findings, at: datetime.datetime | None) -> None:
    """Count an image that waits for its next attempt."""
    findings.waiting += 1
    if at is not None:
        findings.next_at = min(at, findings.next_at or at)
