# SPDX-License-Identifier: Apache-2.0
"""Plans what an image needs, from its record; after its execution, a plan is empty."""

import dataclasses
import datetime
import enum
from collections.abc import Collection
from collections.abc import Mapping

from acstor_common.formats import boot_image
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.image import lineage
from acstor_common.model import ids
from acstor_common.util import backoff

_NEVER = "never"
RETRY_FIRST_S = 60  # delay after the first failure; each further failure doubles it
RETRY_LAST_S = 86400
ORPHAN_GRACE_S = 3600  # age at which an artefact without pointer is deleted, longer than its upload
UNIQUE_PROPERTIES = (artefacts.OF_IMAGE, artefacts.OS_HASH_VALUE)
"""Properties of an artefact that plans need, with values of its own."""
SHARED_PROPERTIES = (artefacts.KIND, artefacts.OS_HASH_ALGO, artefacts.FORMAT, artefacts.ORIGIN)
"""Properties that plans need, with values that many artefacts share."""
_AT_ONCE = datetime.datetime.min.replace(tzinfo=datetime.UTC)


class Step(enum.Enum):
    """The next step for an image."""

    NOTHING = enum.auto()
    PREPARE = enum.auto()  # make and publish the chunk map, then the other artefacts
    REFUSE = enum.auto()  # record why it is not served
    WAIT = enum.auto()  # the next attempt after a failure is not due yet


@dataclasses.dataclass(frozen=True)
class Retry:
    """Failed attempts, and the time of the next one (None: never)."""

    attempts: int
    at: datetime.datetime | None

    def __str__(self) -> str:
        when = self.at.isoformat(timespec="seconds") if self.at else _NEVER
        return f"{self.attempts} {when}"

    @classmethod
    def parse(cls, text: str) -> "Retry | None":
        """Parse a property; None if it is invalid."""
        attempts, _, when = text.partition(" ")
        if not (attempts.isascii() and attempts.isdecimal() and len(attempts) < 6):
            return None
        try:
            at = None if when == _NEVER else datetime.datetime.fromisoformat(when)
        except ValueError:
            return None
        if at is not None and at.tzinfo is None:
            return None
        return cls(int(attempts), at)

    @classmethod
    def after_failure(cls, before: "Retry | None", now: datetime.datetime) -> "Retry":
        """Return the value after one more failure, with twice the delay."""
        attempts = (before.attempts if before else 0) + 1
        wait_s = backoff.pause_s(attempts - 1, RETRY_FIRST_S, RETRY_LAST_S)
        return cls(attempts, now + datetime.timedelta(seconds=wait_s))


@dataclasses.dataclass(frozen=True)
class DesiredArtefacts:
    """Artefacts that each image should have; disk formats that are converted."""

    kinds: Mapping[artefacts.Kind, int]
    convertible: Collection[str] = ()

    def for_image(self, image: image_record.Image) -> Mapping[artefacts.Kind, int]:
        """Return the desired artefacts of an image, with their formats' versions."""
        if not image.is_convertible:
            return self.kinds
        return {**self.kinds, artefacts.Kind.CONVERTED: artefacts.CONVERTED_VERSION}


@dataclasses.dataclass(frozen=True)
class Plan:
    """The next step for an image, its reason, and when to try again."""

    step: Step
    why: str = ""
    at: datetime.datetime | None = None


def plan_image(
    image: image_record.Image,
    found: Mapping[ids.ImageId, image_record.Image],
    project_id: str,
    desired: DesiredArtefacts,
    now: datetime.datetime,
) -> Plan:
    """Return what ``image`` needs; ``found`` has at least its artefacts, by ID."""
    if artefacts.is_excluded(image, project_id):
        return Plan(Step.NOTHING, "it is an artefact itself")
    if image.status != image_record.ACTIVE:
        return Plan(Step.NOTHING, image_record.why_not_served(image))
    why_not = image_record.why_not_served(image, desired.convertible)
    if why_not:
        return Plan(Step.NOTHING if _is_refused(image, why_not) else Step.REFUSE, why_not)
    why = _why_incomplete(image, found, project_id, desired.for_image(image))
    if not why and artefacts.state_of(image) is artefacts.State.READY:
        return Plan(Step.NOTHING)
    return _plan_attempt(image, why, now)


def _is_refused(image: image_record.Image, why: str) -> bool:
    return (
        artefacts.state_of(image) is artefacts.State.REFUSED
        and image.text(artefacts.MESSAGE) == artefacts.fit_message(why)
        and not any(kind.pointer in image.properties for kind in artefacts.Kind)
    )


def retry_of(image: image_record.Image) -> Retry | None:
    """Return the recorded failures of this image."""
    if artefacts.state_of(image) not in (artefacts.State.FAILED, artefacts.State.REFUSED):
        return None
    return Retry.parse(image.text(artefacts.RETRY))


def next_boot_image_build(
    image: image_record.Image, found: Mapping[ids.ImageId, image_record.Image], project_id: str
) -> Retry | None:
    """Return when to build the image's boot image; None: never.

    The builder records the next attempt before it starts: an image may kill its builder.
    """
    if artefacts.state_of(image) is not artefacts.State.READY:
        return None
    desired = {artefacts.Kind.BOOT_IMAGE: boot_image.VERSION}
    pointer = artefacts.pointer_of(image, artefacts.Kind.BOOT_IMAGE)
    present = found.get(pointer) if pointer else None
    is_complete = not _why_incomplete(image, found, project_id, desired)
    has_one = is_complete and not artefacts.is_inherited(present)
    written = Retry.parse(image.text(artefacts.BOOT_RETRY))
    retry = written or Retry(0, _AT_ONCE)
    return None if has_one or retry.at is None else retry


def is_comparison_due(image: image_record.Image) -> bool:
    """Return whether to compare a prepared image with its backing image."""
    is_ready = artefacts.state_of(image) is artefacts.State.READY
    known = artefacts.lineage_of(image)
    return is_ready and known.shared_bytes is None and bool(lineage.bases_of(image))


def _plan_attempt(image: image_record.Image, why: str, now: datetime.datetime) -> Plan:
    retry = retry_of(image)
    if retry is None or (retry.at is not None and retry.at <= now):
        return Plan(Step.PREPARE, why)
    return Plan(Step.WAIT, image.text(artefacts.MESSAGE), retry.at)


def _why_incomplete(
    image: image_record.Image,
    found: Mapping[ids.ImageId, image_record.Image],
    project_id: str,
    desired: Mapping[artefacts.Kind, int],
) -> str:
    for kind, version in desired.items():
        pointer = artefacts.pointer_of(image, kind)
        if pointer is None:
            return f"it has no {kind.value}"
        if pointer not in found:
            return f"it points to {pointer}, which is not its {kind.value}"
        why = artefacts.why_foreign(image, found[pointer], kind, project_id, version)
        if why:
            return why
    return ""


def why_orphan(
    artefact: image_record.Image,
    image: image_record.Image | None,
    now: datetime.datetime,
    grace_s: float,
) -> str:
    """Return why an artefact is an orphan; empty if it is not, or may be in use."""
    if artefact.text(artefacts.KIND) == artefacts.SCOPE_SECRET:
        return ""
    of_image = artefact.text(artefacts.OF_IMAGE)
    if _age_s(artefact, now) < grace_s and image is not None:
        return ""  # uploads precede the pointer
    if image is None:
        return f"image {of_image or 'unknown'} does not exist"
    kind = artefacts.kind_of(artefact)
    if kind is None:
        return ""  # of a later version, which cleans up itself
    if artefacts.pointer_of(image, kind) != artefact.id:
        return f"image {of_image} does not point to it"
    return ""


def _age_s(record: image_record.Image, now: datetime.datetime) -> float:
    try:
        made = datetime.datetime.fromisoformat(record.created_at)
    except ValueError:
        return 0.0
    made = made if made.tzinfo else made.replace(tzinfo=datetime.UTC)
    return (now - made).total_seconds()
