# SPDX-License-Identifier: Apache-2.0
"""Which boot images may lie in memory, and for how long.

Together they never take more than the limit.  A boot image is held from the
moment that a guest is about to boot until it has been read by nobody for a while,
or until the longest boot must be over; one that has fallen quiet makes room for a
new one at once.
"""

from collections.abc import Iterator

from acstor_common.model import ids

QUIET_S = 5.0
"""Whoever was not read for this long makes room if another boot image needs it."""
IDLE_S = 60.0
"""A boot is over when a guest has needed nothing for this long; boots that follow each other so
closely are served from one loading of their boot image."""
LONGEST_S = 600.0
"""And so long after the last guest began in any case. Boots to the login prompt took 13 to 17 s
where they were measured, by emulation: this is for hosts where many guests start at once."""


class _Held:
    """One boot image in memory: its bytes, the last start of a guest, the last read."""

    __slots__ = ("begun_s", "size_bytes", "used_s")

    def __init__(self, size_bytes: int, now_s: float) -> None:
        self.size_bytes = size_bytes
        self.begun_s = self.used_s = now_s


class BootMemory:
    """The bytes that boot images take.

    :param idle_s: a boot image that was not read for this long is dropped
    :param longest_s: dropped this long after the last guest began, even if it is still read

    >>> memory = BootMemory(limit_bytes=100, idle_s=60, longest_s=600)
    >>> memory.take("a", 80, now_s=0.0), memory.take("b", 80, now_s=1.0)
    ([], None)
    >>> memory.take("b", 80, now_s=10.0)
    ['a']
    """

    def __init__(self, limit_bytes: int, idle_s: float, longest_s: float) -> None:
        self.limit_bytes = limit_bytes
        self._idle_s = idle_s
        self._longest_s = longest_s
        self._held: dict[ids.ImageId, _Held] = {}

    @property
    def used_bytes(self) -> int:
        """What is taken now."""
        return sum(held.size_bytes for held in self._held.values())

    def reserve(
        self, image_id: ids.ImageId, size_bytes: int, now_s: float
    ) -> list[ids.ImageId] | None:
        """Take room for a boot image; None if there is none.

        :return: the boot images to be dropped first; they hold nothing any more
        """
        others = {other: held for other, held in self._held.items() if other != image_id}
        free_bytes = self.limit_bytes - sum(held.size_bytes for held in others.values())
        dropped = []
        for other in self._quietest(others, now_s):
            if free_bytes >= size_bytes:
                break
            free_bytes += others[other].size_bytes
            dropped.append(other)
        if free_bytes < size_bytes:
            return None
        for other in dropped:
            del self._held[other]
        self._held[image_id] = _Held(size_bytes, now_s)
        return dropped

    @staticmethod
    def _quietest(held: dict[ids.ImageId, _Held], now_s: float) -> Iterator[ids.ImageId]:
        for image_id in sorted(held, key=lambda image_id: held[image_id].used_s):
            if now_s - held[image_id].used_s >= QUIET_S:
                yield image_id

    def release_bytes(self, image_id: ids.ImageId) -> None:
        """Give back what a boot image has taken, if it has."""
        self._held.pop(image_id, None)

    def note_boot(self, image_id: ids.ImageId, now_s: float) -> None:
        """Note that another guest begins to boot."""
        if image_id in self._held:
            self._held[image_id].begun_s = self._held[image_id].used_s = now_s

    def note_use(self, image_id: ids.ImageId, now_s: float) -> None:
        """Note that a boot image was read."""
        if image_id in self._held:
            self._held[image_id].used_s = now_s

    def take_due(self, now_s: float) -> list[ids.ImageId]:
        """Return the boot images to be dropped now; they hold nothing any more."""
        due = [
            image_id
            for image_id, held in self._held.items()
            if now_s - held.used_s >= self._idle_s or now_s - held.begun_s >= self._longest_s
        ]
        for image_id in due:
            del self._held[image_id]
        return due
