# SPDX-License-Identifier: Apache-2.0
"""Inode numbers and file handles of images and disks.

Numbers are computed from IDs by BLAKE3 in keyed mode, with one key per host, so each worker knows
the numbers of its predecessors, and tenants, who choose IDs, cannot aim at a collision. Each number
keeps its whole ID; the second ID with a number is refused by name.

* Bits 63 and 62: 10 for an image, 01 for a disk; folders have numbers below.
* Bits 61 to 56: opener (of a disk: 1 if synchronous); 55 to 42: tag of the opening process. Or 0.
* Bits 41 to 0: the last 42 bits of the keyed hash.

The tag, a keyed hash of a process's ID and start time, shows whether a handle may belong to a
process; 0: unknown. Each released layout has its :data:`LAYOUT`; no other version serves its mount.
"""

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
from acstor_common.util import lru_table

LAYOUT = 1  # version of the bits above and of the hashing of IDs
KEY_BYTES = 32
_IMAGE, _DISK = 1 << 63, 1 << 62
_OPENER_SHIFT, _OPENER_BITS = 56, 6
_TAG_SHIFT, _TAG_BITS = 42, 14
_HASH_MASK = (1 << _TAG_SHIFT) - 1
_OPENER_MASK = (1 << _OPENER_BITS) - 1
_TAG_MASK = (1 << _TAG_BITS) - 1
_OPENING_MASK = _OPENER_MASK << _OPENER_SHIFT | _TAG_MASK << _TAG_SHIFT
_SYNCHRONOUS = 1 << _OPENER_SHIFT
DETACHED = 4096  # detached images whose numbers are kept: a process may still have one open
_UNRECORDED_OPENERS = range(boot_recorder.OPENERS + 1, 1 << _OPENER_BITS)

Hash = Callable[[bytes], int]  # maps an ID to a number; the caller masks excess bits


def keyed(key: bytes) -> Hash:
    """Return the hash of a host."""

    def number(name: bytes) -> int:
        return int.from_bytes(blake3.blake3(name, key=key).digest(length=8), "big")

    return number


def position_of(inode: int) -> int:
    """Return the position of a file in its folder, the same for each worker."""
    return inode & _HASH_MASK


def is_synchronous(handle: int) -> bool:
    """Return whether a disk's handle is synchronous."""
    return bool(handle & _SYNCHRONOUS)


class Opening(NamedTuple):
    """Meaning of a mirror's handle."""

    image_id: ids.ImageId
    opener: int
    guest: requests.Stream


def guest_of_disk(disk_id: disk_header.DiskId) -> requests.Stream:
    """Return the stream of a disk's reads and writes."""
    return requests.Stream(requests.Klass.GUEST, disk_id)


def guest_of_opening(image_id: ids.ImageId, opener: int, tag: int = 0) -> requests.Stream:
    """Return the stream of the reads of one opener of an image."""
    name = f"{image_id}/{opener}.{tag:04x}" if tag else f"{image_id}/{opener}"
    return requests.Stream(requests.Klass.GUEST, name)


class Owner(NamedTuple):
    """Owner of a guest's stream, from the stream's name."""

    inode: int
    tag: int  # of the opening process; 0 if unknown


class Inodes:
    """The images and disks that are known by number.

    >>> inodes = Inodes(keyed(bytes(KEY_BYTES)))
    >>> inode = inodes.register_image(ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"))
    >>> str(inodes.opening_of(inodes.open(inode, 3)).guest)
    'guest:7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11/3'
    """

    def __init__(self, number_of: Hash, detached_limit: int = DETACHED) -> None:
        self._number_of = number_of
        self.openings: dict[int, Opening] = {}  # known handles of images, see opening_of
        self.disks: dict[int, disk_header.DiskId] = {}
        self._images: dict[int, ids.ImageId] = {}
        self._owners: dict[int, str] = {}
        self._detached: lru_table.LruTable[ids.ImageId, None] = lru_table.LruTable(detached_limit)
        self._other_openers = itertools.cycle(_UNRECORDED_OPENERS)

    def of_image(self, image_id: ids.ImageId) -> int:
        """Return the inode number of a mirror."""
        return self._number(b"image " + ids.image_id_bytes(image_id)) | _IMAGE

    def of_disk(self, disk_id: disk_header.DiskId) -> int:
        """Return the inode number of a disk."""
        return self._number(b"disk " + disk_id.encode()) | _DISK

    def _number(self, name: bytes) -> int:
        return self._number_of(name) & _HASH_MASK

    def register_image(self, image_id: ids.ImageId) -> int:
        """Register an image; return its inode, or raise NumberInUse if another image has it."""
        inode = self.of_image(image_id)
        self._own(inode, f"image {image_id}")
        self._images[inode] = image_id
        self._detached.pop(image_id, None)
        return inode

    def register_disk(self, disk_id: disk_header.DiskId) -> int:
        """Register a disk; return its inode, or raise NumberInUse if another disk has it."""
        inode = self.of_disk(disk_id)
        self._own(inode, f"disk {disk_id}")
        self.disks[inode] = disk_id
        return inode

    def image_detached(self, image_id: ids.ImageId) -> None:
        """Record that an image was detached; only the last ones are kept."""
        evicted = self._detached.put(image_id, None)
        if evicted is not None:
            self.forget_image(evicted[0])

    def forget_image(self, image_id: ids.ImageId) -> None:
        """Forget a detached image and its handles, for which the kernel gets ESTALE from now on."""
        self._detached.pop(image_id, None)
        inode = self.of_image(image_id)
        if self._images.get(inode) == image_id:
            del self._images[inode], self._owners[inode]
            for handle in [opened for opened in self.openings if opened & ~_OPENING_MASK == inode]:
                del self.openings[handle]

    def forget_disk(self, disk_id: disk_header.DiskId) -> None:
        """Forget a dropped disk; a new disk with its ID gets its number again."""
        inode = self.of_disk(disk_id)
        if self.disks.get(inode) == disk_id:
            del self.disks[inode], self._owners[inode]

    def _own(self, inode: int, what: str) -> None:
        owner = self._owners.setdefault(inode, what)
        if owner != what:
            raise errors.NumberInUse(what, owner, inode)

    def register_all(
        self, image_ids: Iterable[ids.ImageId], disk_ids: Iterable[disk_header.DiskId]
    ) -> list[errors.NumberInUse]:
        """Register all images and disks of a host; return, and refuse, all colliding ones."""
        refused = []
        knows = itertools.chain(
            ((self.register_image, file_id) for file_id in image_ids),
            ((self.register_disk, file_id) for file_id in disk_ids),
        )
        for know, file_id in knows:
            try:
                know(file_id)  # type: ignore[operator]  # each has its own kind of id
            except errors.NumberInUse as e:
                self._disown(e)  # a guess could give a guest another's bytes
                refused.append(e)
        return refused

    def _disown(self, taken: errors.NumberInUse) -> None:
        self._owners[taken.number] = f"{taken.owner}, {taken.what}"
        self._images.pop(taken.number, None)
        self.disks.pop(taken.number, None)

    def process_tag(self, pid: int, started: int) -> int:
        """Return the tag of a process, never 0."""
        return self._number_of(b"process %d %d" % (pid, started)) % ((1 << _TAG_BITS) - 1) + 1

    def open(self, inode: int, recorded_as: int, tag: int = 0) -> int:
        """Return a new opener's handle; ``recorded_as``: its number in the boot recorder, or 0."""
        opener = recorded_as or next(self._other_openers)
        handle = inode | opener << _OPENER_SHIFT | tag << _TAG_SHIFT
        self.opening_of(handle)
        return handle

    def opening_of(self, handle: int) -> Opening | None:
        """Return the meaning of a mirror's handle or inode; None if unknown."""
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

    def open_disk(self, inode: int, is_synchronous: bool) -> int:
        """Return a handle of a disk; each write to a synchronous one must be synced."""
        return inode | _SYNCHRONOUS if is_synchronous else inode

    def disk_of(self, handle: int) -> disk_header.DiskId | None:
        """Return the disk of a handle or inode; None if unknown."""
        return self.disks.get(handle & ~_OPENING_MASK)

    def handle_closed(self, handle: int) -> None:
        """Forget a closed handle; an equal one can be resolved again."""
        self.openings.pop(handle, None)

    def owner_of(self, guest: requests.Stream) -> Owner:
        """Return the owner of a stream: the inverse of :meth:`guest_of`."""
        file_id, slash, opener = guest.name.partition("/")
        if not slash:
            return Owner(self.of_disk(disk_header.DiskId(file_id)), 0)
        tag = opener.partition(".")[2]
        return Owner(self.of_image(ids.ImageId(file_id)), int(tag, 16) if tag else 0)

    def guest_of(self, handle: int) -> requests.Stream:
        """Return the stream that uses a handle: its disk, or its opening."""
        opening = self.opening_of(handle)
        if opening is not None:
            return opening.guest
        return guest_of_disk(self.disk_of(handle) or disk_header.DiskId(""))
