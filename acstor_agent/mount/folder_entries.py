# SPDX-License-Identifier: Apache-2.0
"""Entries of the mirror's folders, in an order that attaching and detaching do not disturb."""

import bisect
import logging
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import NamedTuple
from typing import TypeVar

import pyfuse3

from acstor_agent.core.disks import disk_header
from acstor_agent.core.mount import inodes
from acstor_agent.disks import disks
from acstor_agent.images.image import mirrors
from acstor_agent.sources import base
from acstor_common import errors
from acstor_common.model import ids

LOG = logging.getLogger(__name__)

FileId = TypeVar("FileId", ids.ImageId, disk_header.DiskId)
Entry = tuple[bytes, pyfuse3.InodeT]

IMAGES = pyfuse3.InodeT(2)
DISKS = pyfuse3.InodeT(3)
FOLDERS = {IMAGES: b"images", DISKS: b"disks"}
_TOP = [(name, inode) for inode, name in FOLDERS.items()]
_ENDING = base.BlobKind.IMAGE.value


class _File(NamedTuple):
    position: int
    name: str
    inode: int
    file_id: ids.ImageId | disk_header.DiskId


class FolderEntries:
    """The entries of the top folder and of the folders of images and disks."""

    def __init__(
        self, images: mirrors.Mirrors, writable_disks: disks.Disks, inode_numbers: inodes.Inodes
    ) -> None:
        self._images, self._disks, self._inodes = images, writable_disks, inode_numbers
        self._listed: dict[int, list[_File]] = {}  # by folder, as its latest listing began

    def list_entries(self, folder: int, start: int) -> Iterator[tuple[int, Entry]]:
        """Yield entries of a folder from ``start``, each with the start of the next one."""
        if folder == pyfuse3.ROOT_INODE:
            yield from list(enumerate(_TOP, 1))[start:]
            return
        if not start or folder not in self._listed:
            self._listed[folder] = sorted(self._files_of(folder))
        listed = self._listed[folder]
        for file in listed[bisect.bisect_left(listed, (start,)) :]:
            if self._is_there(folder, file):
                yield file.position + 1, (file.name.encode(), pyfuse3.InodeT(file.inode))

    def _files_of(self, folder: int) -> Iterator[_File]:
        if folder == DISKS:
            found = self._disks.list_disks()
            return _named(found, self._inodes.register_disk, self._disks.name_of)
        images = list(self._images.attached_now)
        return _named(images, self._inodes.register_image, f"{{}}{_ENDING}".format)

    def _is_there(self, folder: int, file: _File) -> bool:
        if folder == DISKS:
            return self._disks.is_shown(disk_header.DiskId(file.file_id), file.name)
        return self._images.is_attached(ids.ImageId(file.file_id))


def _named(
    found: Iterable[FileId], know: Callable[[FileId], int], name_of: Callable[[FileId], str]
) -> Iterator[_File]:
    for file_id in found:
        try:
            inode = know(file_id)
        except errors.NumberInUse as e:
            LOG.error("%s", e)
        else:
            yield _File(inodes.position_of(inode), name_of(file_id), inode, file_id)
