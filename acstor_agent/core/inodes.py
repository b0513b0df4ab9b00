# SPDX-License-Identifier: Apache-2.0
"""The numbers by which the kernel knows images, disks and who has opened an image.

The one rule: every number is made from ids and never handed out in turn, so
each worker knows those that a former one has given to the kernel.
"""

import itertools
from collections.abc import Iterable
from typing import NamedTuple

import xxhash

from acstor_agent.core import boot_recorder
from acstor_agent.core import disk_header
from acstor_common import ids

_OPENER_SHIFT = 56
_OTHER_OPENERS = range(boot_recorder.OPENERS + 1, 2 * boot_recorder.OPENERS + 1)
"""Numbers of guests that are not recorded; those of one image take turns with them."""


def inode_of_image(image_id: ids.ImageId) -> int:
    """Return the inode number of a mirror."""
    return xxhash.xxh3_64_intdigest(ids.image_id_bytes(image_id)) | 1 << 63


def inode_of_disk(disk_id: disk_header.DiskId) -> int:
    """Return the inode number of a disk, never that of a mirror."""
    return (xxhash.xxh3_64_intdigest(disk_id.encode()) & (1 << 63) - 1) | 1 << 62


class Opening(NamedTuple):
    """What the handle of a mirror stands for.

    :param opener: who has opened it, by the number that it was given
    """

    image_id: ids.ImageId
    opener: int


class Inodes:
    """The images and disks that are known by their numbers.

    ``openings`` are those of images, by handle; the handle without an opener is the inode.

    >>> inodes = Inodes()
    >>> inodes.know_image(ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"))
    >>> handle = inodes.open(inode_of_image("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"), 3)
    >>> inodes.openings[handle]
    Opening(image_id='7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11', opener=3)
    """

    def __init__(self) -> None:
        self.openings: dict[int, Opening] = {}
        self.disks: dict[int, disk_header.DiskId] = {}
        self._other_openers = itertools.cycle(_OTHER_OPENERS)

    def know_image(self, image_id: ids.ImageId) -> None:
        """Know an image by its inode, and by the handles of all who may have opened it."""
        inode = inode_of_image(image_id)
        if inode not in self.openings:
            for opener in range(_OTHER_OPENERS.stop):
                self.openings[inode ^ opener << _OPENER_SHIFT] = Opening(image_id, opener)

    def know_disks(self, disk_ids: Iterable[disk_header.DiskId]) -> None:
        """Know disks by their inodes."""
        self.disks.update((inode_of_disk(disk_id), disk_id) for disk_id in disk_ids)

    def open(self, inode: int, recorded_as: int) -> int:
        """Return the handle of one more who opens a mirror.

        :param recorded_as: the number by which its reads are recorded, 0 if they are not
        """
        return inode ^ (recorded_as or next(self._other_openers)) << _OPENER_SHIFT

    def guest(self, handle: int) -> str:
        """Return the name of the guest that reads or writes: its disk, or its opening."""
        opening = self.openings.get(handle)
        if opening is None:
            return self.disks.get(handle, "")
        return f"{opening.image_id}/{opening.opener}"
