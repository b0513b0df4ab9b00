# SPDX-License-Identifier: Apache-2.0
"""Decides which images acstor protects against deletion in Glance.

An image is *needed* while a host uses it and has not fully cached it. acstor sets ``protected`` of
a needed image, and a mark: the tag ``acstor_protected=…`` of image, service project and time. It
ignores marks of other images (copies) and of other projects (another acstor).

acstor removes only protection that it has set, after a while of complete answers without the image
while hosts report. Where a user removed it, acstor replaces the mark by ``acstor_unprotected=…``,
and leaves the image alone until a user removes this tag. Images marked before the decision
service's database began keep it until that is a day old.
"""

import datetime
import enum
import itertools
import math
from collections.abc import Collection
from collections.abc import Mapping

from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.wire import decision_messages

UNNEEDED_S = 120.0  # time without need after which an image's protection is removed
SAMPLE_AGE_S = 120.0  # protection is removed only if a host has reported within this time
SILENT_HOST_S = 86400.0  # time for which the decision service counts a silent host's needs
RELIST_S = 300.0  # interval between full reads of the protected images from Glance
RETRY_S = 30.0
ANSWER_GAP_S = 60.0  # longest interval between answers over which an image counts as unneeded
_GONE = frozenset({"deleted", "pending_delete", "killed"})


class ProtectionStatus(enum.StrEnum):
    """Protection of an image in Glance; values appear in metrics and output."""

    FREE = "free"  # not protected
    OTHERS = "others"  # protected, and not by this acstor
    OURS = "acstor"  # protected by acstor
    DECLINED = "declined"  # a user removed acstor's protection
    GONE = "gone"  # not in Glance any more
    FAILED = "failed"  # Glance refused or failed to read or change it
    ARTEFACT = "artefact"  # acstor made it: no server uses it, and acstor must be able to delete it


class Change(enum.StrEnum):
    """A change of an image's protection or tags."""

    SET = "set"
    REMOVE = "removed"
    RECORD_REMOVAL = "was removed by a user, which is recorded"


def tags_after(
    change: Change, image: image_record.Image, project_id: str, now_s: float
) -> list[str]:
    """Return an image's tags after a change at ``now_s``.

    >>> tags_after(Change.SET, image_record.Image(tags=("mine",)), "PROJECT", 1800000000.5)
    ['mine', 'acstor_protected=,PROJECT,2027-01-15T08:00:01+00:00']
    """
    of_image = _of_image(image, project_id)
    now = datetime.datetime.fromtimestamp(math.ceil(now_s), datetime.UTC)
    words = {Change.SET: artefacts.PROTECTED, Change.RECORD_REMOVAL: artefacts.UNPROTECTED}
    added = [words[change] + of_image + now.isoformat()] if change in words else []
    return [*tags_without_marks(image, project_id), *added]


def tags_without_marks(image: image_record.Image, project_id: str) -> list[str]:
    """Return an image's tags without acstor's own."""
    words = (artefacts.PROTECTED, artefacts.UNPROTECTED)
    own = tuple(word + _of_image(image, project_id) for word in words)
    return [tag for tag in image.tags if not tag.startswith(own)]


def protection_time_s(image: image_record.Image, project_id: str) -> float | None:
    """Return when acstor protected an image: None without mark, 0 if unreadable."""
    own = artefacts.PROTECTED + _of_image(image, project_id)
    marks = [tag.removeprefix(own) for tag in image.tags if tag.startswith(own)]
    if not marks:
        return None
    try:
        return datetime.datetime.fromisoformat(marks[0]).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


def _of_image(image: image_record.Image, project_id: str) -> str:
    return f"{image.id},{project_id},"


def _has_removal_tag(image: image_record.Image, project_id: str) -> bool:
    own = artefacts.UNPROTECTED + _of_image(image, project_id)
    return any(tag.startswith(own) for tag in image.tags)


def protection_of(image: image_record.Image | None, project_id: str) -> ProtectionStatus:
    """Return the protection status of an image; ``image`` None: it is not in Glance."""
    if image is None or image.status in _GONE:
        return ProtectionStatus.GONE
    if artefacts.is_excluded(image, project_id):
        return ProtectionStatus.ARTEFACT
    has_removal_tag = _has_removal_tag(image, project_id)
    is_marked = protection_time_s(image, project_id) is not None
    if image.is_protected:
        return (
            ProtectionStatus.OURS if is_marked and not has_removal_tag else ProtectionStatus.OTHERS
        )
    return ProtectionStatus.DECLINED if is_marked or has_removal_tag else ProtectionStatus.FREE


def is_newly_declined(image: image_record.Image, project_id: str) -> bool:
    """Return whether a user removed acstor's protection and no tag records it yet."""
    is_declined = protection_of(image, project_id) is ProtectionStatus.DECLINED
    return is_declined and not _has_removal_tag(image, project_id)


class ProtectionState:
    """Protection of images needed or protected; ``now_s`` is of a monotonic clock."""

    def __init__(self) -> None:
        self._answer = decision_messages.NeededImages([], False, None, None, 0, 0.0)
        self._answered_at_s = float("-inf")
        self._needed: dict[str, None] = {}  # in the order in which they became needed
        self._known: dict[str, ProtectionStatus] = {}
        self._marked_s: dict[str, float] = {}
        self._unneeded_since: dict[str, float] = {}
        self._recheck_at: dict[str, float] = {}
        self._to_record: set[str] = set()

    def set_needed(self, answer: decision_messages.NeededImages, now_s: float) -> None:
        """Store an answer of the decision service."""
        needed = dict.fromkeys(answer.images)
        before = {image_id: None for image_id in self._needed if image_id in needed}
        if not answer.is_complete or now_s - self._answered_at_s > ANSWER_GAP_S:
            self._unneeded_since.clear()  # answers in between may have had them
        self._answer, self._needed, self._answered_at_s = answer, before | needed, now_s
        self._settle(now_s)

    def set_protected(self, protected_at: Mapping[str, float], now_s: float) -> None:
        """Store all images that acstor protects, with their times; recheck the others."""
        rest = {
            known_id: status
            for known_id, status in self._known.items()
            if known_id not in protected_at
        }
        for image_id in rest:
            self._recheck_at.setdefault(image_id, now_s)
        self._known = {**rest, **dict.fromkeys(protected_at, ProtectionStatus.OURS)}
        self._marked_s |= protected_at
        self._to_record &= rest.keys()
        self._settle(now_s)

    def update_image(
        self, image_id: str, image: image_record.Image | None, project_id: str
    ) -> None:
        """Store an image as read from Glance."""
        self._forget(image_id)
        self._known[image_id] = status = protection_of(image, project_id)
        if image is not None and status is ProtectionStatus.OURS:
            self._marked_s[image_id] = protection_time_s(image, project_id) or 0.0
        if image is not None and is_newly_declined(image, project_id):
            self._to_record.add(image_id)

    def mark_failed(self, image_id: str, now_s: float) -> None:
        """Record a failure and delay the next attempt; OURS stays, to be removed one day."""
        if self._known.get(image_id) is not ProtectionStatus.OURS:
            self._known[image_id] = ProtectionStatus.FAILED
        self._recheck_at[image_id] = now_s + RETRY_S

    def mark_changed(self, image_id: str) -> None:
        """Queue an image for another look, if it is known here."""
        if image_id in self._known:
            self._recheck_at.setdefault(image_id, 0.0)

    def images_to_check(self, now_s: float) -> list[str]:
        """Return the images to read now: new ones, changes and rechecks take turns."""
        known, recheck_at = self._known, self._recheck_at
        new = [image_id for image_id in self._needed if image_id not in known]
        changes = sorted(
            image_id
            for image_id, status in known.items()
            if recheck_at.get(image_id, now_s) <= now_s and self._change(image_id, status, now_s)
        )
        again = sorted((at_s, image_id) for image_id, at_s in recheck_at.items() if at_s <= now_s)
        in_turn = itertools.zip_longest(new, changes, [image_id for _, image_id in again])
        return list(
            dict.fromkeys(image_id for turn in in_turn for image_id in turn if image_id is not None)
        )

    def plan_change(self, image_id: str, now_s: float) -> Change | None:
        """Return the change that an image needs, after :meth:`update_image`."""
        return self._change(image_id, self._known[image_id], now_s)

    def service_time_s(self) -> float:
        """Return the time by the decision service's clock."""
        return self._answer.now_s

    def list_statuses(self) -> dict[str, ProtectionStatus | None]:
        """Return the status of each needed image; None: not read yet."""
        return {image_id: self._known.get(image_id) for image_id in sorted(self._needed)}

    def list_protected(self, now_s: float = math.inf) -> Collection[str]:
        """Return the images that acstor protects, without those to be retried later."""
        return [
            image_id
            for image_id, status in self._known.items()
            if status is ProtectionStatus.OURS and self._recheck_at.get(image_id, now_s) <= now_s
        ]

    def _change(self, image_id: str, status: ProtectionStatus, now_s: float) -> Change | None:
        if image_id in self._to_record:
            return Change.RECORD_REMOVAL
        if status is ProtectionStatus.FREE and image_id in self._needed:
            return Change.SET
        if status is ProtectionStatus.OURS and self._may_be_removed(image_id, now_s):
            return Change.REMOVE
        return None

    def _may_be_removed(self, image_id: str, now_s: float) -> bool:
        since_s = self._unneeded_since.get(image_id)
        if since_s is None or now_s - since_s < UNNEEDED_S:
            return False
        answer = self._answer
        if not answer.is_complete:
            return False
        if answer.last_sample_s is None or answer.now_s - answer.last_sample_s > SAMPLE_AGE_S:
            return False
        if answer.first_sample_s is None:
            return False
        is_of_this_database = self._marked_s.get(image_id, 0.0) >= answer.first_sample_s
        return is_of_this_database or answer.now_s - answer.first_sample_s > SILENT_HOST_S

    def _settle(self, now_s: float) -> None:
        kept = self._needed.keys() | self._to_record
        for image_id, status in list(self._known.items()):
            if image_id not in kept and status is not ProtectionStatus.OURS:
                self._forget(image_id)
        protected = set(self.list_protected())
        unneeded = protected - self._needed.keys()
        if self._answer.is_complete:
            for image_id in unneeded:
                self._unneeded_since.setdefault(image_id, now_s)
        for image_id in self._unneeded_since.keys() - unneeded:
            del self._unneeded_since[image_id]
        for image_id in self._marked_s.keys() - protected:
            del self._marked_s[image_id]

    def _forget(self, image_id: str) -> None:
        self._known.pop(image_id, None)
        self._recheck_at.pop(image_id, None)
        self._to_record.discard(image_id)
