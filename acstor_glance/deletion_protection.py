# SPDX-License-Identifier: Apache-2.0
"""Decides which images acstor protects against deletion in Glance.

An image is *needed* while a host uses it and has not fully cached it. acstor sets the property
``protected`` of a needed image, with a mark, the tag ``acstor_protected=…`` of image, service
project and time. There is no other record, so a listener continues from Glance after a crash. Marks
with another image's ID are copies, those with another project are another acstor's; both are
ignored.

acstor removes only protection that it has set. Where a user removed it (a mark without
``protected``), acstor replaces the mark by ``acstor_unprotected=…``, and leaves the image alone
until a user removes this tag.

Protection is removed only after a while of complete answers without the image, and only while hosts
report. Images marked before the decision service's database began keep it until that is a day old.
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

UNNEEDED_S = 120.0
"""An image must be unneeded for so long before its protection is removed."""
SAMPLE_AGE_S = 120.0
"""Protection is removed only if a host has reported within this time."""
SILENT_HOST_S = 86400.0
"""The decision service counts the needs of a silent host for so long."""
RELIST_S = 300.0
"""Interval between full reads of the protected images from Glance."""
RETRY_S = 30.0
"""Delay before an image that could not be read or changed is tried again."""
ANSWER_GAP_S = 60.0
"""Longest interval between answers over which an image counts as unneeded."""
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
    TAKE_BACK = "taken back"
    NOTE = "was taken back by somebody, which is noted"


def tags_after(
    change: Change, image: image_record.Image, project_id: str, now_s: float
) -> list[str]:
    """Return an image's tags after a change at ``now_s``.

    >>> tags_after(Change.SET, image_record.Image(tags=("mine",)), "PROJECT", 1800000000.5)
    ['mine', 'acstor_protected=,PROJECT,2027-01-15T08:00:01+00:00']
    """
    of_image = _of_image(image, project_id)
    now = datetime.datetime.fromtimestamp(math.ceil(now_s), datetime.UTC)
    words = {Change.SET: artefacts.PROTECTED, Change.NOTE: artefacts.UNPROTECTED}
    added = [words[change] + of_image + now.isoformat()] if change in words else []
    return [*tags_of(image, project_id), *added]


def tags_of(image: image_record.Image, project_id: str) -> list[str]:
    """Return an image's tags without acstor's own."""
    words = (artefacts.PROTECTED, artefacts.UNPROTECTED)
    own = tuple(word + _of_image(image, project_id) for word in words)
    return [tag for tag in image.tags if not tag.startswith(own)]


def marked_s(image: image_record.Image, project_id: str) -> float | None:
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


def _is_noted(image: image_record.Image, project_id: str) -> bool:
    own = artefacts.UNPROTECTED + _of_image(image, project_id)
    return any(tag.startswith(own) for tag in image.tags)


def protection_of(image: image_record.Image | None, project_id: str) -> ProtectionStatus:
    """Return the protection status of an image; ``image`` None: it is not in Glance."""
    if image is None or image.status in _GONE:
        return ProtectionStatus.GONE
    if artefacts.is_left_alone(image, project_id):
        return ProtectionStatus.ARTEFACT
    is_noted = _is_noted(image, project_id)
    is_marked = marked_s(image, project_id) is not None
    if image.is_protected:
        return ProtectionStatus.OURS if is_marked and not is_noted else ProtectionStatus.OTHERS
    return ProtectionStatus.DECLINED if is_marked or is_noted else ProtectionStatus.FREE


def is_newly_declined(image: image_record.Image, project_id: str) -> bool:
    """Return whether a user removed acstor's protection and no tag records it yet."""
    is_declined = protection_of(image, project_id) is ProtectionStatus.DECLINED
    return is_declined and not _is_noted(image, project_id)


class ProtectionState:
    """Protection of images needed or protected; ``now_s`` is of a monotonic clock."""

    def __init__(self) -> None:
        self._told = decision_messages.NeededImages([], False, None, None, 0, 0.0)
        self._told_at_s = float("-inf")
        self._needed: dict[str, None] = {}  # in the order in which they became needed
        self._known: dict[str, ProtectionStatus] = {}
        self._marked_s: dict[str, float] = {}
        self._unneeded_since: dict[str, float] = {}
        self._again: dict[str, float] = {}
        self._to_note: set[str] = set()

    def set_needed(self, told: decision_messages.NeededImages, now_s: float) -> None:
        """Store an answer of the decision service."""
        needed = dict.fromkeys(told.images)
        before = {image_id: None for image_id in self._needed if image_id in needed}
        if not told.is_complete or now_s - self._told_at_s > ANSWER_GAP_S:
            self._unneeded_since.clear()  # answers in between may have had them
        self._told, self._needed, self._told_at_s = told, before | needed, now_s
        self._settle(now_s)

    def set_protected(self, ours: Mapping[str, float], now_s: float) -> None:
        """Store all images that acstor protects, with their times; recheck the others."""
        rest = {one: is_now for one, is_now in self._known.items() if one not in ours}
        for image_id in rest:
            self._again.setdefault(image_id, now_s)
        self._known = {**rest, **dict.fromkeys(ours, ProtectionStatus.OURS)}
        self._marked_s |= ours
        self._to_note &= rest.keys()
        self._settle(now_s)

    def update_image(
        self, image_id: str, image: image_record.Image | None, project_id: str
    ) -> None:
        """Store an image as read from Glance."""
        self._forget(image_id)
        self._known[image_id] = status = protection_of(image, project_id)
        if image is not None and status is ProtectionStatus.OURS:
            self._marked_s[image_id] = marked_s(image, project_id) or 0.0
        if image is not None and is_newly_declined(image, project_id):
            self._to_note.add(image_id)

    def mark_failed(self, image_id: str, now_s: float) -> None:
        """Record a failure and delay the next attempt; OURS stays, to be removed one day."""
        if self._known.get(image_id) is not ProtectionStatus.OURS:
            self._known[image_id] = ProtectionStatus.FAILED
        self._again[image_id] = now_s + RETRY_S

    def mark_changed(self, image_id: str) -> None:
        """Queue an image for another look, if it is known here."""
        if image_id in self._known:
            self._again.setdefault(image_id, 0.0)

    def images_to_check(self, now_s: float) -> list[str]:
        """Return the images to read now: new ones, changes and rechecks take turns."""
        known, again_s = self._known, self._again
        new = [one for one in self._needed if one not in known]
        changes = sorted(
            one
            for one, is_now in known.items()
            if again_s.get(one, now_s) <= now_s and self._change(one, is_now, now_s)
        )
        again = sorted((at_s, one) for one, at_s in again_s.items() if at_s <= now_s)
        in_turn = itertools.zip_longest(new, changes, [one for _, one in again])
        return list(dict.fromkeys(one for turn in in_turn for one in turn if one is not None))

    def plan_change(self, image_id: str, now_s: float) -> Change | None:
        """Return the change that an image needs, after :meth:`update_image`."""
        return self._change(image_id, self._known[image_id], now_s)

    def service_s(self) -> float:
        """Return the time by the decision service's clock."""
        return self._told.now_s

    def list_states(self) -> dict[str, ProtectionStatus | None]:
        """Return the status of each needed image; None: not read yet."""
        return {image_id: self._known.get(image_id) for image_id in sorted(self._needed)}

    def list_protected(self, now_s: float = math.inf) -> Collection[str]:
        """Return the images that acstor protects, without those to be retried later."""
        return [
            one
            for one, is_now in self._known.items()
            if is_now is ProtectionStatus.OURS and self._again.get(one, now_s) <= now_s
        ]

    def _change(self, image_id: str, is_now: ProtectionStatus, now_s: float) -> Change | None:
        if image_id in self._to_note:
            return Change.NOTE
        if is_now is ProtectionStatus.FREE and image_id in self._needed:
            return Change.SET
        if is_now is ProtectionStatus.OURS and self._may_be_taken_back(image_id, now_s):
            return Change.TAKE_BACK
        return None

    def _may_be_taken_back(self, image_id: str, now_s: float) -> bool:
        since_s = self._unneeded_since.get(image_id)
        if since_s is None or now_s - since_s < UNNEEDED_S:
            return False
        told = self._told
        if not told.is_complete:
            return False
        if told.last_sample_s is None or told.now_s - told.last_sample_s > SAMPLE_AGE_S:
            return False
        if told.first_sample_s is None:
            return False
        is_of_this_database = self._marked_s.get(image_id, 0.0) >= told.first_sample_s
        return is_of_this_database or told.now_s - told.first_sample_s > SILENT_HOST_S

    def _settle(self, now_s: float) -> None:
        """Drop irrelevant images; record since when protected ones are unneeded."""
        kept = self._needed.keys() | self._to_note
        for image_id, is_now in list(self._known.items()):
            if image_id not in kept and is_now is not ProtectionStatus.OURS:
                self._forget(image_id)
        ours = set(self.list_protected())
        unneeded = ours - self._needed.keys()
        if self._told.is_complete:
            for image_id in unneeded:
                self._unneeded_since.setdefault(image_id, now_s)
        for image_id in self._unneeded_since.keys() - unneeded:
            del self._unneeded_since[image_id]
        for image_id in self._marked_s.keys() - ours:
            del self._marked_s[image_id]

    def _forget(self, image_id: str) -> None:
        self._known.pop(image_id, None)
        self._again.pop(image_id, None)
        self._to_note.discard(image_id)
