# SPDX-License-Identifier: Apache-2.0
"""Which images acstor protects from being deleted, and which it no longer does.

An image is *needed* while a host uses it and is not whole there: who deletes it then takes bytes
that a guest may still want.  So its property ``protected`` is set in Glance, and taken back when
it is needed no longer.  Beside it stands a mark, the tag ``acstor_protected=…`` that says which
image, for which service project and since when, and is set and removed in the same request.  There
is no other record: whoever comes after a crash finds in Glance what was done.  A mark that names
another image was copied, one of another project is another acstor's: neither counts.

The two rules: acstor takes back only what it has set itself; and where somebody has taken back
what acstor had set (the mark is there, and the image is not protected) he has the last word.  The
tag ``acstor_unprotected=…`` takes the mark's place then, so that he may protect it himself.

Nothing is taken back for want of news: not before an image has been needed by nobody for a
while in which the service was asked all the time and told all, not while no host is heard, and
not because the service has lost its database.
"""

import datetime
import enum
import itertools
import math
from collections.abc import Collection
from collections.abc import Mapping

import msgspec

from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.model import ids

UNNEEDED_S = 120.0
"""How long an image must have been needed by nobody before it may be deleted again."""
HEARD_S = 120.0
"""How long ago a host may have been heard last if anything is to be taken back."""
SILENT_S = 86400.0
"""How long the service counts what a host needed that fell silent."""
LOOK_AGAIN_S = 300.0
"""How often everything is read from Glance anew."""
AGAIN_S = 30.0
"""When an image is tried again that could not be looked at or changed."""
GAP_S = 60.0
"""How long nobody may have asked what is needed if the time before is to count."""
_GONE = frozenset({"deleted", "pending_delete", "killed"})


class NeededImages(msgspec.Struct, frozen=True):
    """What the decision service tells (``GET /v1/needed-images``); times by its clock.

    :param images: ids of the images that are needed
    :param is_complete: no others are needed
    :param last_sample_s: when a host was heard last; None: there is none
    :param first_sample_s: since when the service knows of hosts; None: it knows none
    :param silent_hosts: those that were not heard lately
    :param now_s: when it told this
    """

    images: list[str]
    is_complete: bool
    last_sample_s: float | None
    first_sample_s: float | None
    silent_hosts: int
    now_s: float

    def __post_init__(self) -> None:
        for image_id in self.images:
            ids.parse_image_id(image_id)


class ProtectionStatus(enum.StrEnum):
    """How an image stands in Glance; the values are in metrics and in what commands print."""

    FREE = "free"  # whoever may delete it can do so
    OTHERS = "others"  # protected, and not by this acstor
    OURS = "acstor"  # protected by acstor
    DECLINED = "declined"  # acstor had protected it, and somebody took that back
    GONE = "gone"  # it is not in Glance any more
    FAILED = "failed"  # Glance did not let it be looked at or changed
    ARTEFACT = "artefact"  # acstor made it: no server uses it, and acstor has to delete it one day


class Change(enum.StrEnum):
    """What is to be done about an image."""

    SET = "set"
    TAKE_BACK = "taken back"
    NOTE = "was taken back by somebody, which is noted"


def tags_after(
    change: Change, record: image_record.Record, project_id: str, now_s: float
) -> list[str]:
    """Return an image's tags as they are after a change at a time.

    >>> tags_after(Change.SET, {"id": "ID", "tags": ["mine"]}, "PROJECT", 1800000000.5)
    ['mine', 'acstor_protected=ID,PROJECT,2027-01-15T08:00:01+00:00']
    """
    of_image = _of_image(record, project_id)
    now = datetime.datetime.fromtimestamp(math.ceil(now_s), datetime.UTC)
    words = {Change.SET: artefacts.PROTECTED, Change.NOTE: artefacts.UNPROTECTED}
    added = [words[change] + of_image + now.isoformat()] if change in words else []
    return [*tags_of(record, project_id), *added]


def tags_of(record: image_record.Record, project_id: str) -> list[str]:
    """Return an image's tags but for acstor's own."""
    words = (artefacts.PROTECTED, artefacts.UNPROTECTED)
    own = tuple(word + _of_image(record, project_id) for word in words)
    return [tag for tag in _tags(record) if not tag.startswith(own)]


def marked_s(record: image_record.Record, project_id: str) -> float | None:
    """Return since when acstor protects an image; None if it bears no mark.

    A mark whose time makes no sense is as old as can be.
    """
    own = artefacts.PROTECTED + _of_image(record, project_id)
    marks = [tag.removeprefix(own) for tag in _tags(record) if tag.startswith(own)]
    if not marks:
        return None
    try:
        return datetime.datetime.fromisoformat(marks[0]).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


def _of_image(record: image_record.Record, project_id: str) -> str:
    return f"{image_record.text_of(record, 'id')},{project_id},"


def _is_noted(record: image_record.Record, project_id: str) -> bool:
    own = artefacts.UNPROTECTED + _of_image(record, project_id)
    return any(tag.startswith(own) for tag in _tags(record))


def _tags(record: image_record.Record) -> list[str]:
    tags = record.get("tags")
    return [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []


def protection_of(record: image_record.Record | None, project_id: str) -> ProtectionStatus:
    """Return how an image stands.

    :param record: None: Glance has no such image
    :param project_id: of acstor's service user
    """
    if record is None or image_record.text_of(record, "status") in _GONE:
        return ProtectionStatus.GONE
    if artefacts.is_left_alone(record, project_id):
        return ProtectionStatus.ARTEFACT
    is_noted = _is_noted(record, project_id)
    is_marked = marked_s(record, project_id) is not None
    if record.get("protected") is True:
        return ProtectionStatus.OURS if is_marked and not is_noted else ProtectionStatus.OTHERS
    return ProtectionStatus.DECLINED if is_marked or is_noted else ProtectionStatus.FREE


def is_to_be_noted(record: image_record.Record, project_id: str) -> bool:
    """Say whether somebody took acstor's protection back and no tag says so yet."""
    is_declined = protection_of(record, project_id) is ProtectionStatus.DECLINED
    return is_declined and not _is_noted(record, project_id)


class ProtectionState:
    """What is known of the images that are needed, and of those that acstor protects.

    Times ``now_s`` are of one clock that never jumps.
    """

    def __init__(self) -> None:
        self._told = NeededImages([], False, None, None, 0, 0.0)
        self._told_at_s = float("-inf")
        self._needed: dict[str, None] = {}  # in the order in which they came to be needed
        self._known: dict[str, ProtectionStatus] = {}
        self._marked_s: dict[str, float] = {}
        self._unneeded_since: dict[str, float] = {}
        self._again: dict[str, float] = {}
        self._to_note: set[str] = set()

    def set_needed(self, told: NeededImages, now_s: float) -> None:
        """Take what the decision service tells."""
        needed = dict.fromkeys(told.images)
        before = {image_id: None for image_id in self._needed if image_id in needed}
        if not told.is_complete or now_s - self._told_at_s > GAP_S:
            self._unneeded_since.clear()  # somebody may have needed them
        self._told, self._needed, self._told_at_s = told, before | needed, now_s
        self._settle(now_s)

    def set_protected(self, ours: Mapping[str, float], now_s: float) -> None:
        """Take what acstor protects, with since when; the rest is looked at again when needed.

        What was looked at comes again after what never was, or the same images always came first.
        So does what was acstor's and is missing: somebody may have taken it back, which is noted.
        """
        rest = {one: is_now for one, is_now in self._known.items() if one not in ours}
        for image_id in rest:
            self._again.setdefault(image_id, now_s)
        self._known = {**rest, **dict.fromkeys(ours, ProtectionStatus.OURS)}
        self._marked_s |= ours
        self._to_note &= rest.keys()
        self._settle(now_s)

    def update_image(
        self, image_id: str, record: image_record.Record | None, project_id: str
    ) -> None:
        """Take an image as Glance tells it."""
        self._forget(image_id)
        self._known[image_id] = standing = protection_of(record, project_id)
        if record is not None and standing is ProtectionStatus.OURS:
            self._marked_s[image_id] = marked_s(record, project_id) or 0.0
        if record is not None and is_to_be_noted(record, project_id):
            self._to_note.add(image_id)

    def mark_failed(self, image_id: str, now_s: float) -> None:
        """Note that an image could not be looked at or changed; others come first for a while.

        What acstor protects stays so: it is to be taken back one day.
        """
        if self._known.get(image_id) is not ProtectionStatus.OURS:
            self._known[image_id] = ProtectionStatus.FAILED
        self._again[image_id] = now_s + AGAIN_S

    def mark_changed(self, image_id: str) -> None:
        """Note that something happened to an image: if it matters here it is looked at again."""
        if image_id in self._known:
            self._again.setdefault(image_id, 0.0)

    def images_to_check(self, now_s: float) -> list[str]:
        """Return the images to look at now, in the order in which they are.

        In turn one that was never looked at, one that is to be changed and one that is to be looked
        at again; each kind in the order in which they came.  So no host that names very many, or
        others each time, holds up the rest for ever.
        """
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
        """Return what is to be done about an image that was just looked at."""
        return self._change(image_id, self._known[image_id], now_s)

    def service_s(self) -> float:
        """Return the time by the decision service's clock."""
        return self._told.now_s

    def list_states(self) -> dict[str, ProtectionStatus | None]:
        """Return how the needed images stand; None: not looked at yet."""
        return {image_id: self._known.get(image_id) for image_id in sorted(self._needed)}

    def list_protected(self, now_s: float = math.inf) -> Collection[str]:
        """Return the images that acstor protects, but for those to be tried again after a time."""
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
        if told.last_sample_s is None or told.now_s - told.last_sample_s > HEARD_S:
            return False
        if told.first_sample_s is None:
            return False
        is_of_this_database = self._marked_s.get(image_id, 0.0) >= told.first_sample_s
        return is_of_this_database or told.now_s - told.first_sample_s > SILENT_S

    def _settle(self, now_s: float) -> None:
        """Forget what is neither needed nor acstor's, and note since when nobody needs the rest.

        What is to be noted is remembered until it was.
        """
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
