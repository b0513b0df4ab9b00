# SPDX-License-Identifier: Apache-2.0
"""The numbers by which the kernel knows images, disks and who has opened an image.

The one rule: a number stands for one id or for nobody.  Ids are longer than numbers, so each
number that is made keeps the whole id, and whoever comes second to a number is refused by name.
That nobody can choose to come second is the key's doing: numbers are a keyed hash of ids
(BLAKE3's keyed mode, a pseudo-random function), and tenants choose ids but do not know the key.

Numbers are made from ids and never handed out in turn, so each worker of a host, which
all have one key, knows those that a former one has given to the kernel.

========  ===========================================================
bits      meaning
========  ===========================================================
63, 62    10 for an image, 01 for a disk; folders have numbers below
61 to 56  who has opened an image; 0 in every inode
55 to 42  tag of the process that has; 0 in every inode, and if it is not known
41 to 0   the last 42 bits of the keyed hash
========  ===========================================================

The tag is a keyed hash of a process's id and the time of its start.  It says of a process that has
the image open whether the handle may be its own (mount/killed_guests.py), also to a worker that has
not seen it opened, and also when the process's id has been used again.

Guests' open files keep their numbers when the agent is upgraded: whoever changes what a number
means gives :data:`LAYOUT` another value, and no version serves a mount of another layout.
"""

import collections
import itertools
from collections.abc import Callable
from collections.abc import Iterable
from typing import NamedTuple

import blake3

from acstor_agent.core.boot import boot_recorder
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.disks import disk_header
from acstor_common import errors
from acstor_common.model import ids

LAYOUT = 1
"""Stands for all of the table above and for how ids are hashed."""
KEY_BYTES = 32
_IMAGE, _DISK = 1 << 63, 1 << 62
_OPENER_SHIFT, _OPENER_BITS = 56, 6
_TAG_SHIFT, _TAG_BITS = 42, 14
_HASH_BITS = _TAG_SHIFT
_OPENER_MASK = (1 << _OPENER_BITS) - 1
_TAG_MASK = (1 << _TAG_BITS) - 1
_OPENING_MASK = _OPENER_MASK << _OPENER_SHIFT | _TAG_MASK << _TAG_SHIFT
DETACHED = 4096
"""Numbers that are known of images that are not attached any more: somebody whom nobody saw may
have one open, and reads on."""
_OTHER_OPENERS = range(boot_recorder.OPENERS + 1, 1 << _OPENER_BITS)
"""Numbers of guests that are not recorded; those of one image take turns with them."""

Hash = Callable[[bytes], int]
"""Makes a number of some bits of an id; bits that are not the hash's are cut off."""


def keyed(key: bytes) -> Hash:
    """Return the hash of a host.

    :param key: KEY_BYTES bytes that nobody outside of the host knows
    """

    def number(name: bytes) -> int:
        return int.from_bytes(blake3.blake3(name, key=key).digest(length=8), "big")

    return number


class Opening(NamedTuple):
    """What the handle of a mirror stands for.

    :param opener: who has opened it, by the number that it was given
    :param guest: whose its reads are
    """

    image_id: ids.ImageId
    opener: int
    guest: requests.Stream


def guest_of_disk(disk_id: disk_header.DiskId) -> requests.Stream:
    """Return whose the reads and writes of a disk are: the guest's that has it for itself."""
    return requests.Stream(requests.Klass.GUEST, disk_id)


def guest_of_opening(image_id: ids.ImageId, opener: int, tag: int = 0) -> requests.Stream:
    """Return whose the reads of one who has opened an image are."""
    name = f"{image_id}/{opener}.{tag:04x}" if tag else f"{image_id}/{opener}"
    return requests.Stream(requests.Klass.GUEST, name)


class Owner(NamedTuple):
    """Whose file a guest reads, as far as its name says.

    :param inode: of the image or the disk
    :param tag: of the process that has opened it; 0 if that is not known
    """

    inode: int
    tag: int


class Inodes:
    """The images and disks that are known by their numbers.

    ``openings`` are those of images, by handle, as far as they were met (see :meth:`opening_of`).

    >>> inodes = Inodes(keyed(bytes(KEY_BYTES)))
    >>> inode = inodes.know_image(ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"))
    >>> str(inodes.opening(inodes.open(inode, 3)).guest)
    'guest:7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11/3'
    """

    def __init__(self, number_of: Hash) -> None:
        self._number_of = number_of
        self.openings: dict[int, Opening] = {}
        self.disks: dict[int, disk_header.DiskId] = {}
        self._images: dict[int, ids.ImageId] = {}
        self._owners: dict[int, str] = {}
        self._detached: collections.OrderedDict[ids.ImageId, None] = collections.OrderedDict()
        self._other_openers = itertools.cycle(_OTHER_OPENERS)

    def of_image(self, image_id: ids.ImageId) -> int:
        """Return the inode number of a mirror."""
        return self._number(b"image " + ids.image_id_bytes(image_id)) | _IMAGE

    def of_disk(self, disk_id: disk_header.DiskId) -> int:
        """Return the inode number of a disk."""
        return self._number(b"disk " + disk_id.encode()) | _DISK

    def _number(self, name: bytes) -> int:
        return self._number_of(name) & ((1 << _HASH_BITS) - 1)

    def know_image(self, image_id: ids.ImageId) -> int:
        """Know an image by its inode, which is returned, and by the handles of who opens it.

        :raises errors.NumberInUse: another image has this number
        """
        inode = self.of_image(image_id)
        self._own(inode, f"image {image_id}")
        self._images[inode] = image_id
        self._detached.pop(image_id, None)
        return inode

    def know_disk(self, disk_id: disk_header.DiskId) -> int:
        """Know a disk by its inode, which is returned.

        :raises errors.NumberInUse: another disk has this number
        """
        inode = self.of_disk(disk_id)
        self._own(inode, f"disk {disk_id}")
        self.disks[inode] = disk_id
        return inode

    def image_detached(self, image_id: ids.ImageId) -> None:
        """Note that an image is not attached any more; of DETACHED the first one is forgotten."""
        self._detached[image_id] = None
        self._detached.move_to_end(image_id)
        if len(self._detached) > DETACHED:
            self.forget_image(next(iter(self._detached)))

    def forget_image(self, image_id: ids.ImageId) -> None:
        """Forget an image that is not attached, and the handles of who had it open.

        What the kernel asks by its number is answered with ESTALE from now on: who has a name
        looks it up again, who has a handle gets the error.
        """
        self._detached.pop(image_id, None)
        inode = self.of_image(image_id)
        if self._images.get(inode) == image_id:
            del self._images[inode], self._owners[inode]
            for handle in [one for one in self.openings if one & ~_OPENING_MASK == inode]:
                del self.openings[handle]

    def forget_disk(self, disk_id: disk_header.DiskId) -> None:
        """Forget a disk that was dropped; another one of its id has its number again."""
        inode = self.of_disk(disk_id)
        if self.disks.get(inode) == disk_id:
            del self.disks[inode], self._owners[inode]

    def _own(self, inode: int, what: str) -> None:
        owner = self._owners.setdefault(inode, what)
        if owner != what:
            raise errors.NumberInUse(what, owner, inode)

    def know_at_start(
        self, image_ids: Iterable[ids.ImageId], disk_ids: Iterable[disk_header.DiskId]
    ) -> list[errors.NumberInUse]:
        """Know all that a host has; a number that two of them claim is nobody's.

        Which of the two a former worker had known by it cannot be told any more, and a guess
        would be a guest that reads what is not his.
        """
        refused = []
        knows = itertools.chain(
            ((self.know_image, one) for one in image_ids),
            ((self.know_disk, one) for one in disk_ids),
        )
        for know, one in knows:
            try:
                know(one)  # type: ignore[operator]  # each has its own kind of id
            except errors.NumberInUse as e:
                self._disown(e)
                refused.append(e)
        return refused

    def _disown(self, taken: errors.NumberInUse) -> None:
        self._owners[taken.number] = f"{taken.owner}, {taken.what}"
        self._images.pop(taken.number, None)
        self.disks.pop(taken.number, None)

    def process_tag(self, pid: int, started: int) -> int:
        """Return the tag of a process, which is never 0.

        :param started: when it was started, as /proc says it
        """
        return self._number_of(b"process %d %d" % (pid, started)) % ((1 << _TAG_BITS) - 1) + 1

    def open(self, inode: int, recorded_as: int, tag: int = 0) -> int:
        """Return the handle of one more who opens a mirror.

        :param recorded_as: the number by which its reads are recorded, 0 if they are not
        :param tag: of the process that opens it; 0 if that is not known
        """
        opener = recorded_as or next(self._other_openers)
        handle = inode | opener << _OPENER_SHIFT | tag << _TAG_SHIFT
        self.opening_of(handle)
        return handle

    def opening_of(self, handle: int) -> Opening | None:
        """Return what a handle or the inode of a mirror stands for, None for that of nobody."""
        found = self.openings.get(handle)
        if found is None:
            opener = handle >> _OPENER_SHIFT & _OPENER_MASK
            tag = handle >> _TAG_SHIFT & _TAG_MASK
            image_id = self._images.get(handle & ~_OPENING_MASK)
            if image_id is not None:
                found = self.openings[handle] = Opening(
                    image_id, opener, guest_of_opening(image_id, opener, tag)
                )
        return found

    def handle_closed(self, handle: int) -> None:
        """Forget a handle that is closed: it can be understood again, if another one is like it."""
        self.openings.pop(handle, None)

    def owner_of(self, guest: requests.Stream) -> Owner:
        """Return whose file a guest reads: the opposite of :meth:`guest_of`."""
        file_id, slash, opener = guest.name.partition("/")
        if not slash:
            return Owner(self.of_disk(disk_header.DiskId(file_id)), 0)
        tag = opener.partition(".")[2]
        return Owner(self.of_image(ids.ImageId(file_id)), int(tag, 16) if tag else 0)

    def guest_of(self, handle: int) -> requests.Stream:
        """Return the guest that reads or writes: its disk, or its opening."""
        opening = self.opening_of(handle)
        if opening is not None:
            return opening.guest
        return guest_of_disk(self.disks.get(handle, disk_header.DiskId("")))
