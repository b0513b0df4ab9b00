# SPDX-License-Identifier: Apache-2.0
"""How much a vault keeps, for whom, and how much more it may keep.

Room is taken before anything is written, and given back for what was not.  Files and folders count
as they lie on a disk: each is an inode, and takes blocks of 4 KiB.
"""

import collections
import threading
from typing import Final
from typing import NamedTuple

from acstor_common import errors
from acstor_common import ids

BLOCK_BYTES: Final = 4096


class Limits(NamedTuple):
    """What a vault may keep.

    :param total_bytes: for all hosts together; 0: nothing
    :param host_bytes: for one host
    :param inodes: for all hosts together: chunks, manifests and the folders that they are in
    """

    total_bytes: int
    host_bytes: int
    inodes: int

    @property
    def host_inodes(self) -> int:
        """How many inodes one host may have: as large a share as that of the bytes.

        >>> Limits(total_bytes=100, host_bytes=50, inodes=1000).host_inodes
        500
        """
        return min(self.inodes, self.inodes * self.host_bytes // max(1, self.total_bytes))


class Used(NamedTuple):
    """What is kept."""

    size_bytes: int = 0
    inodes: int = 0


def on_disk(size_bytes: int) -> int:
    """Return what a file takes of a disk.

    >>> on_disk(1), on_disk(4096), on_disk(4097)
    (4096, 4096, 8192)
    """
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


class Room:
    """The room of one vault; may be used by many threads.

    :param here: whose vault it is, for errors
    """

    def __init__(self, limits: Limits, here: str) -> None:
        self.limits = limits
        self._here = here
        self._lock = threading.Lock()
        self._used: collections.defaultdict[ids.HostId, Used] = collections.defaultdict(Used)
        self._total = Used()
        self.refused = 0  #: files and folders for which there was no room

    def take(self, owner: ids.HostId, size_bytes: int) -> None:
        """Take the room of a file or folder.

        :raises errors.VaultFull: there is none
        """
        with self._lock:
            if why := self._fault(self._used[owner], on_disk(size_bytes)):
                self.refused += 1
                raise errors.VaultFull(self._here, why)
            self._add(owner, on_disk(size_bytes), 1)

    def count(self, owner: ids.HostId, size_bytes: int) -> None:
        """Note a file or folder that is there already, whatever the limits are now."""
        with self._lock:
            self._add(owner, on_disk(size_bytes), 1)

    def give_back(self, owner: ids.HostId, size_bytes: int) -> None:
        """Note that a file or folder is there no more."""
        with self._lock:
            self._add(owner, -on_disk(size_bytes), -1)

    def used(self) -> dict[ids.HostId, Used]:
        """Return what is kept for each host."""
        with self._lock:
            return {owner: used for owner, used in self._used.items() if used.inodes}

    def _add(self, owner: ids.HostId, size_bytes: int, inodes: int) -> None:
        one, total = self._used[owner], self._total
        self._used[owner] = Used(one.size_bytes + size_bytes, one.inodes + inodes)
        self._total = Used(total.size_bytes + size_bytes, total.inodes + inodes)

    def _fault(self, one: Used, size_bytes: int) -> str:
        total, limits = self._total, self.limits
        if total.size_bytes + size_bytes > limits.total_bytes:
            return f"{total.size_bytes} of {limits.total_bytes} bytes are in use"
        if one.size_bytes + size_bytes > limits.host_bytes:
            return f"{one.size_bytes} of the {limits.host_bytes} bytes of one host are in use"
        if total.inodes >= limits.inodes:
            return f"{total.inodes} of {limits.inodes} inodes are in use"
        if one.inodes >= limits.host_inodes:
            return f"{one.inodes} of the {limits.host_inodes} inodes of one host are in use"
        return ""
