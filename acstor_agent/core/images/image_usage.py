# SPDX-License-Identifier: Apache-2.0
"""Which images are in use, told from what was seen of them.

What cannot be told counts as used.  An image that is taken for used for too long
costs room; one that is taken for unused too early costs a guest its disk.

Times are seconds of one clock that never goes back, given by the caller.
"""

import collections
import math
from collections.abc import Collection
from typing import NamedTuple

from acstor_common.model import ids

IN_USE_S = 3 * 3600.0
"""How long a touch shows that an image is in use: Nova touches those of all its instances, stopped
ones too, each ``[image_cache] manager_interval`` (40 minutes); so it may miss one.

The time of two passes and SILENT_S together are shorter: else images would count as unused for the
moments before Nova is taken for away."""
SILENT_S = IN_USE_S / 2
"""For how long Nova must touch nothing to be taken for away; longer than two passes are apart."""
SILENCE_S = 7 * 24 * 3600.0
"""How long Nova may be away before that shows anything: a host whose last instance was deleted is
one whose images Nova does not touch."""


class UsageEvidence(NamedTuple):
    """What shows that an image is in use.

    :param is_open: a process has it open, or it is not known yet that none has
    :param is_base: a disk of this host began as it
    :param idle_s: how long nobody has touched or read it, as far as that shows anything
    """

    is_open: bool
    is_base: bool
    idle_s: float

    def is_used(self, within_s: float = IN_USE_S) -> bool:
        """Say whether the image counts as used.

        :param within_s: how long a touch or a read counts
        """
        return self.is_open or self.is_base or self.idle_s < within_s


class Openings:
    """How many have each image open: counted where that was seen, asked for where it was not.

    What a former worker saw is not known, so an image counts as open until processes were looked
    at.  An image that none had open at that moment is *settled*: from then on counting is exact.

    >>> openings, image = Openings(), ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
    >>> openings.is_open(image), openings.must_look([image])
    (True, True)
    >>> openings.begin_look()
    >>> openings.looked([], [image])
    >>> openings.is_open(image), openings.must_look([image])
    (False, False)
    >>> openings.opened(image)
    >>> openings.is_open(image)
    True
    """

    def __init__(self) -> None:
        self._counts: collections.Counter[ids.ImageId] = collections.Counter()
        self._settled: set[ids.ImageId] = set()
        self._found: set[ids.ImageId] | None = None
        self._changed: set[ids.ImageId] = set()

    def __len__(self) -> int:
        return len(self._counts.keys() | self._settled)

    def image_opened(self, image_id: ids.ImageId) -> None:
        """Note that somebody has opened an image."""
        self._count(image_id, 1)

    def image_closed(self, image_id: ids.ImageId) -> None:
        """Note that somebody has closed an image, which may have been opened before the start."""
        self._count(image_id, -1)

    def _count(self, image_id: ids.ImageId, by: int) -> None:
        self._counts[image_id] += by
        self._changed.add(image_id)
        if not self._counts[image_id]:
            del self._counts[image_id]

    def is_open(self, image_id: ids.ImageId) -> bool:
        """Say whether somebody has an image open, or may have."""
        if self._counts[image_id] > 0:
            return True
        if image_id in self._settled:
            return False
        return self._found is None or image_id in self._found or image_id in self._changed

    def is_seen(self, image_id: ids.ImageId) -> bool:
        """Say whether somebody was seen who has an image open."""
        return self._counts[image_id] > 0 or image_id in (self._found or ())

    def must_look(self, attached: Collection[ids.ImageId]) -> bool:
        """Say whether processes must be looked at to know more of these images."""
        return any(one not in self._settled and self._counts[one] <= 0 for one in attached)

    def begin_look(self) -> None:
        """Note that processes are looked at from now on; what changes meanwhile is not settled."""
        if self._found is not None:
            self._found |= self._changed
        self._changed = set()

    def note_open_files(
        self, found: Collection[ids.ImageId], attached: Collection[ids.ImageId]
    ) -> None:
        """Note which images processes had open, and forget what is not attached any more."""
        self._found = set(found)
        for image_id in attached:
            if image_id not in self._found and image_id not in self._changed:
                self._settled.add(image_id)
                del self._counts[image_id]
        self.forget_others(attached)

    def forget_others(self, attached: Collection[ids.ImageId]) -> None:
        """Forget what is not attached and not open."""
        self._settled.intersection_update(attached)
        self._changed.intersection_update(attached)
        for image_id in [one for one, count in self._counts.items() if count < 0]:
            if image_id not in attached:
                del self._counts[image_id]


class Touches:
    """When images were touched or read last.

    Time counts only while Nova is there, for else it cannot touch what it uses.  Only its own
    touches show that it is: guests read, and operators ask for images, without it.  It is taken
    for there at the start, when each image counts as touched: what was before says nothing, for
    Nova or this host may have been away, or the host's date may have been wrong.

    >>> image = ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
    >>> touches = Touches(now_s=40.0, attached=[image])
    >>> touches.idle_s(image, now_s=50.0), touches.is_seen(image)
    (10.0, False)
    >>> touches.touched(image, at_s=100.0)
    >>> touches.idle_s(image, now_s=160.0), touches.is_seen(image)
    (60.0, True)

    :param attached: the images that are there at the start
    """

    def __init__(self, now_s: float, attached: Collection[ids.ImageId] = ()) -> None:
        self._at_s = dict.fromkeys(attached, now_s)
        self._unseen = set(attached)
        self._for_others: set[ids.ImageId] = set()
        self._nova_s = now_s
        """When Nova touched anything last."""

    def __len__(self) -> int:
        return len(self._at_s)

    def image_touched(
        self, image_id: ids.ImageId, at_s: float, *, is_by_nova: bool = False
    ) -> None:
        """Note that an image was touched; an earlier time than that known says nothing."""
        if is_by_nova:
            self._nova_came(at_s)
        self._at_s[image_id] = max(at_s, self._at_s.get(image_id, -math.inf))
        self._unseen.discard(image_id)
        self._for_others.discard(image_id)

    def image_attached(
        self, image_id: ids.ImageId, at_s: float, *, is_for_others: bool = False
    ) -> None:
        """Note that an image was attached, which shows no use: it counts as at the start.

        :param is_for_others: because another host has asked for it
        """
        if image_id not in self._at_s:
            self._at_s[image_id] = at_s
            self._unseen.add(image_id)
            if is_for_others:
                self._for_others.add(image_id)

    def _nova_came(self, at_s: float) -> None:
        """Note that Nova is there; if it was away, it has yet to touch its other images."""
        away_s = at_s - self._nova_s
        if away_s > SILENT_S:
            self._at_s = {one: min(its_s + away_s, at_s) for one, its_s in self._at_s.items()}
        self._nova_s = max(at_s, self._nova_s)

    def idle_s(self, image_id: ids.ImageId, now_s: float) -> float:
        """Return how long an image was not touched; infinity if it never was; from any thread.

        The time for which Nova is away does not count: never after it has come back, and while it
        is away up to SILENCE_S.
        """
        at_s = self._at_s.get(image_id, -math.inf)
        is_silent = SILENT_S < now_s - self._nova_s <= SILENCE_S
        return max(0.0, (self._nova_s if is_silent else now_s) - at_s)

    def is_seen(self, image_id: ids.ImageId) -> bool:
        """Say whether an image was touched since the start; from any thread."""
        return image_id in self._at_s and image_id not in self._unseen

    def is_for_others(self, image_id: ids.ImageId) -> bool:
        """Say whether another host's wish is all that shows of an image; from any thread."""
        return image_id in self._for_others

    def forget_image(self, image_id: ids.ImageId) -> None:
        """Forget an image; what is attached by that name from now on is another one."""
        self._at_s.pop(image_id, None)
        self._unseen.discard(image_id)
        self._for_others.discard(image_id)

    def forget_others(self, attached: Collection[ids.ImageId]) -> None:
        """Forget what is not attached any more."""
        for image_id in self._at_s.keys() - set(attached):
            self.forget_image(image_id)
