# SPDX-License-Identifier: Apache-2.0
"""Plans what an image needs, from its record; after its execution, a plan is empty."""

import dataclasses
import datetime
import enum
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping

from acstor_common.formats import boot_image
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.image import lineage
from acstor_common.model import ids
from acstor_common.util import backoff

RETRY_FIRST_S = 60  # delay after the first failure; each further failure doubles it
RETRY_LAST_S = 86400
ORPHAN_GRACE_S = 3600  # age at which an artefact without pointer is deleted, longer than its upload
UNIQUE_PROPERTIES = (artefacts.OF_IMAGE, artefacts.OS_HASH_VALUE)
"""Properties of an artefact that plans need, with values of its own."""
SHARED_PROPERTIES = (artefacts.KIND, artefacts.OS_HASH_ALGO, artefacts.FORMAT, artefacts.ORIGIN)
"""Properties that plans need, with values that many artefacts share."""
_AT_ONCE = datetime.datetime.min.replace(tzinfo=datetime.UTC)

FindArtefact = Callable[[ids.ImageId], image_record.Image | None]


class Step(enum.Enum):
    """The next step for an image."""

    NOTHING = enum.auto()
    PREPARE = enum.auto()  # make and publish the chunk map, then the other artefacts
    REFUSE = enum.auto()  # record why it is not served
    WAIT = enum.auto()  # the next attempt after a failure is not due yet


@dataclasses.dataclass(frozen=True)
class Retry:
    """Failed attempts, and the time of the next one (None: never)."""

    attempts: int = 0
    at: datetime.datetime | None = _AT_ONCE

    def __str__(self) -> str:
        when = self.at.isoformat(timespec="seconds") if self.at else artefacts.NEVER
        return f"{self.attempts} {when}"

    @classmethod
    def parse(cls, text: str) -> "Retry":
        """Parse a property; no failures if it is invalid."""
        attempts, _, when = text.partition(" ")
        if not (attempts.isascii() and attempts.isdecimal() and len(attempts) < 6):
            return cls()
        try:
            at = None if when == artefacts.NEVER else datetime.datetime.fromisoformat(when)
        except ValueError:
            return cls()
        if at is not None and at.tzinfo is None:
            return cls()
        return cls(int(attempts), at)

    def is_due(self, now: datetime.datetime) -> bool:
        """Return whether the next attempt may begin."""
        return self.at is not None and self.at <= now

    def after_failure(self, now: datetime.datetime) -> "Retry":
        """Return the value after one more failure, with twice the delay."""
        wait_s = backoff.pause_s(self.attempts, RETRY_FIRST_S, RETRY_LAST_S)
        return Retry(self.attempts + 1, now + datetime.timedelta(seconds=wait_s))


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
    """The next step for an image, its reason, and its failures so far."""

    step: Step
    why: str = ""
    retry: Retry = Retry()


def plan_image(
    image: image_record.Image,
    find: FindArtefact,
    project_id: str,
    desired: DesiredArtefacts,
    now: datetime.datetime,
    *,
    is_forced: bool = False,  # despite a chunk map or a failure
) -> Plan:
    """Return what ``image`` needs; ``find`` returns at least its artefacts."""
    if artefacts.is_excluded(image, project_id):
        return Plan(Step.NOTHING, "it is an artefact itself")
    state, message = artefacts.state_of(image), image.text(artefacts.MESSAGE)
    if why_not := image_record.why_not_served(image, desired.convertible):
        is_known = (
            state is artefacts.State.REFUSED
            and message == artefacts.fit_message(why_not)
            and not any(kind.pointer in image.properties for kind in artefacts.Kind)
        )
        is_active = image.status == image_record.ACTIVE
        return Plan(Step.REFUSE if is_active and not is_known else Step.NOTHING, why_not)
    has_failed = state in (artefacts.State.FAILED, artefacts.State.REFUSED)
    retry = Retry.parse(image.text(artefacts.RETRY)) if has_failed else Retry()
    if is_forced:
        return Plan(Step.PREPARE, "", retry)
    kinds = desired.for_image(image)
    why = _why_incomplete(image, find, project_id, kinds)
    if not why and state is artefacts.State.READY:
        return Plan(Step.NOTHING)
    if retry.is_due(now):
        return Plan(Step.PREPARE, why, retry)
    return Plan(Step.WAIT, message, retry)


def next_boot_image_build(
    image: image_record.Image, find: FindArtefact, project_id: str
) -> Retry | None:
    """Return when to build the image's boot image; None: never.

    The builder records the next attempt before it starts: an image may kill its builder.
    """
    if artefacts.state_of(image) is not artefacts.State.READY:
        return None
    desired = {artefacts.Kind.BOOT_IMAGE: boot_image.VERSION}
    pointer = artefacts.pointer_of(image, artefacts.Kind.BOOT_IMAGE)
    is_complete = not _why_incomplete(image, find, project_id, desired)
    has_one = is_complete and not artefacts.is_inherited(find(pointer) if pointer else None)
    retry = Retry.parse(image.text(artefacts.BOOT_RETRY))
    return None if has_one or retry.at is None else retry


def is_comparison_due(image: image_record.Image) -> bool:
    """Return whether to compare a prepared image with its backing image."""
    is_ready = artefacts.state_of(image) is artefacts.State.READY
    known = artefacts.lineage_of(image)
    return is_ready and known.shared_bytes is None and bool(lineage.bases_of(image))


def _why_incomplete(
    image: image_record.Image,
    find: FindArtefact,
    project_id: str,
    desired: Mapping[artefacts.Kind, int],
) -> str:
    for kind, version in desired.items():
        pointer = artefacts.pointer_of(image, kind)
        if pointer is None:
            return f"it has no {kind.value}"
        found = find(pointer)
        if found is None:
            return f"it points to {pointer}, which is not its {kind.value}"
        if why := artefacts.why_foreign(image, found, kind, project_id, version):
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
