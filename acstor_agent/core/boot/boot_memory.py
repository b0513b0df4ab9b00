# SPDX-License-Identifier: Apache-2.0
"""Bounds the memory of boot images, and says how long each stays."""

from collections.abc import Iterator

from acstor_common.model import ids

QUIET_S = 5.0
IDLE_S = 60.0
"""A boot ends after this idle time; boots closer together share one load of the boot image."""
LONGEST_S = 600.0
"""Longest time after the last guest began. Measured boots took 13 to 17 s under emulation; this
allows for hosts where many guests start at once."""


class _Held:
    __slots__ = ("begun_s", "size_bytes", "used_s")

    def __init__(self, size_bytes: int, now_s: float) -> None:
        self.size_bytes = size_bytes
        self.begun_s = self.used_s = now_s


class BootMemory:
    """The bytes of boot images in memory.

    >>> memory = BootMemory(limit_bytes=100, idle_s=60, longest_s=600)
    >>> memory.reserve("a", 80, now_s=0.0), memory.reserve("b", 80, now_s=1.0)
    ([], None)
    >>> memory.reserve("b", 80, now_s=10.0)
    ['a']
    """

    def __init__(self, limit_bytes: int, idle_s: float, longest_s: float) -> None:
        self.limit_bytes = limit_bytes
        self._idle_s = idle_s  # drop a boot image that was not read for this long
        self._longest_s = longest_s  # drop it so long after the last boot began, even if it is read
        self._held: dict[ids.ImageId, _Held] = {}

    @property
    def used_bytes(self) -> int:
        """Return the bytes in use."""
        return sum(held.size_bytes for held in self._held.values())

    def reserve(
        self, image_id: ids.ImageId, size_bytes: int, now_s: float
    ) -> list[ids.ImageId] | None:
        """Reserve memory; return boot images to drop first, or None if the memory is too small."""
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
        """Release the memory of a boot image, if it has any."""
        self._held.pop(image_id, None)

    def note_boot(self, image_id: ids.ImageId, now_s: float) -> None:
        """Record that a guest begins to boot."""
        if image_id in self._held:
            self._held[image_id].begun_s = self._held[image_id].used_s = now_s

    def note_use(self, image_id: ids.ImageId, now_s: float) -> None:
        """Record a read of a boot image."""
        if image_id in self._held:
            self._held[image_id].used_s = now_s

    def take_due(self, now_s: float) -> list[ids.ImageId]:
        """Return the boot images that are due to be dropped, and release their memory."""
        due = [
            image_id
            for image_id, held in self._held.items()
            if now_s - held.used_s >= self._idle_s or now_s - held.begun_s >= self._longest_s
        ]
        for image_id in due:
            del self._held[image_id]
        return due
