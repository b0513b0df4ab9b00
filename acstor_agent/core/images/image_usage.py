# SPDX-License-Identifier: Apache-2.0
"""Which images are in use, from evidence such as open files, touches and reads.

Without evidence an image counts as used: an error in the other direction costs a guest its disk.
"""

import collections
import math
from collections.abc import Collection
from typing import NamedTuple

from acstor_common.model import ids

IN_USE_S = 3 * 3600.0
"""How long a touch counts. Nova touches the images of all its instances, also stopped ones, each
``[image_cache] manager_interval`` (40 minutes), so it may miss one pass. Must be longer than
two passes and SILENT_S together; else images count as unused before Nova counts as absent."""
SILENT_S = IN_USE_S / 2
"""Nova counts as absent after this time without a touch; longer than the time between two
passes."""
SILENCE_S = 7 * 24 * 3600.0
"""How long Nova's absence preserves images. After that it is evidence: Nova touches nothing on a
host whose last instance was deleted."""


class UsageEvidence(NamedTuple):
    """Evidence that an image is in use."""

    is_open: bool  # a process has it open, or may have
    is_base: bool  # a disk of this host is based on it
    idle_s: float  # seconds since the last touch or read, without Nova's absence

    def is_used(self, within_s: float = IN_USE_S) -> bool:
        """Return whether the image counts as used."""
        return self.is_open or self.is_base or self.idle_s < within_s


class Openings:
    """Counts the open files of each image; exact once processes were inspected.

    >>> openings, image = Openings(), ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
    >>> openings.is_open(image), openings.is_inspection_due([image])
    (True, True)
    >>> openings.begin_inspection()
    >>> openings.note_open_files([], [image])
    >>> openings.is_open(image), openings.is_inspection_due([image])
    (False, False)
    >>> openings.image_opened(image)
    >>> openings.is_open(image)
    True
    """

    def __init__(self) -> None:
        self._counts: collections.Counter[ids.ImageId] = collections.Counter()
        self._settled: set[ids.ImageId] = set()  # no process had them open: counts are exact
        self._found: set[ids.ImageId] | None = None
        self._changed: set[ids.ImageId] = set()

    def __len__(self) -> int:
        return len(self._counts.keys() | self._settled)

    def image_opened(self, image_id: ids.ImageId) -> None:
        """Count an open."""
        self._count(image_id, 1)

    def image_closed(self, image_id: ids.ImageId) -> None:
        """Count a close; the open may have happened before the start."""
        self._count(image_id, -1)

    def _count(self, image_id: ids.ImageId, by: int) -> None:
        self._counts[image_id] += by
        self._changed.add(image_id)
        if not self._counts[image_id]:
            del self._counts[image_id]

    def is_open(self, image_id: ids.ImageId) -> bool:
        """Return whether a process has it open, or may have: opens before the start are unknown."""
        if self._counts[image_id] > 0:
            return True
        if image_id in self._settled:
            return False
        return self._found is None or image_id in self._found or image_id in self._changed

    def is_seen(self, image_id: ids.ImageId) -> bool:
        """Return whether a process is known to have the image open."""
        return self._counts[image_id] > 0 or image_id in (self._found or ())

    def is_inspection_due(self, attached: Collection[ids.ImageId]) -> bool:
        """Return whether processes must be inspected to know more of these images."""
        return any(
            image_id not in self._settled and self._counts[image_id] <= 0 for image_id in attached
        )

    def begin_inspection(self) -> None:
        """Begin an inspection of processes; images that change meanwhile are not settled."""
        if self._found is not None:
            self._found |= self._changed
        self._changed = set()

    def note_open_files(
        self, found: Collection[ids.ImageId], attached: Collection[ids.ImageId]
    ) -> None:
        """Record the images that processes had open, and forget detached ones."""
        self._found = set(found)
        for image_id in attached:
            if image_id not in self._found and image_id not in self._changed:
                self._settled.add(image_id)
                del self._counts[image_id]
        self.forget_others(attached)

    def forget_others(self, attached: Collection[ids.ImageId]) -> None:
        """Forget images that are neither attached nor open."""
        self._settled.intersection_update(attached)
        self._changed.intersection_update(attached)
        for image_id in [opened_id for opened_id, count in self._counts.items() if count < 0]:
            if image_id not in attached:
                del self._counts[image_id]


class Touches:
    """The last touch or read of each image.

    Time counts only while touches by Nova show that it is present: an absent Nova cannot touch the
    images that it uses. At the start Nova counts as present, and the ``attached`` images as
    touched, because earlier times may be wrong.
    """

    def __init__(self, now_s: float, attached: Collection[ids.ImageId] = ()) -> None:
        self._at_s = dict.fromkeys(attached, now_s)
        self._unseen = set(attached)
        self._for_others: set[ids.ImageId] = set()
        self._nova_s = now_s

    def __len__(self) -> int:
        return len(self._at_s)

    def image_touched(
        self, image_id: ids.ImageId, at_s: float, *, is_by_nova: bool = False
    ) -> None:
        """Record a touch; a time before the last known one is ignored."""
        if is_by_nova:
            self._record_nova(at_s)
        self._at_s[image_id] = max(at_s, self._at_s.get(image_id, -math.inf))
        self._unseen.discard(image_id)
        self._for_others.discard(image_id)

    def image_attached(
        self, image_id: ids.ImageId, at_s: float, *, is_replica: bool = False
    ) -> None:
        """Record an attached image; like the start, that is no evidence of use."""
        if image_id not in self._at_s:
            self._at_s[image_id] = at_s
            self._unseen.add(image_id)
            if is_replica:
                self._for_others.add(image_id)

    def _record_nova(self, at_s: float) -> None:
        away_s = at_s - self._nova_s
        if away_s > SILENT_S:
            self._at_s = {
                image_id: min(its_s + away_s, at_s) for image_id, its_s in self._at_s.items()
            }
        self._nova_s = max(at_s, self._nova_s)

    def idle_s(self, image_id: ids.ImageId, now_s: float) -> float:
        """Return the seconds since the last touch, or infinity; any thread may call it."""
        at_s = self._at_s.get(image_id, -math.inf)
        is_silent = SILENT_S < now_s - self._nova_s <= SILENCE_S  # Nova's absence does not count
        return max(0.0, (self._nova_s if is_silent else now_s) - at_s)

    def is_seen(self, image_id: ids.ImageId) -> bool:
        """Return whether an image was touched since the start; any thread may call it."""
        return image_id in self._at_s and image_id not in self._unseen

    def is_replica(self, image_id: ids.ImageId) -> bool:
        """Return whether only another host uses an image; any thread may call it."""
        return image_id in self._for_others

    def forget_image(self, image_id: ids.ImageId) -> None:
        """Forget an image; a later one with this ID is another image."""
        self._at_s.pop(image_id, None)
        self._unseen.discard(image_id)
        self._for_others.discard(image_id)

    def forget_others(self, attached: Collection[ids.ImageId]) -> None:
        """Forget detached images."""
        for image_id in self._at_s.keys() - set(attached):
            self.forget_image(image_id)
