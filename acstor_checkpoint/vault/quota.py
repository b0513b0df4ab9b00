# SPDX-License-Identifier: Apache-2.0
"""How much a vault keeps, for whom, and how much more it may keep.

Room is taken before anything is written, and given back for what was not.  Files and folders count
as they lie on a disk: each is an inode, and takes blocks of 4 KiB.
"""

import collections
import enum
import logging
import threading
from collections.abc import Iterator
from typing import Final
from typing import NamedTuple

from acstor_common import errors
from acstor_common.model import ids

LOG = logging.getLogger(__name__)

BLOCK_BYTES: Final = 4096
FULL: Final = 0.95


class Bound(enum.StrEnum):
    """A bound of a vault; the value is a metric's label."""

    VAULT_BYTES = "vault_bytes"
    VAULT_INODES = "vault_inodes"
    HOST_BYTES = "host_bytes"
    HOST_INODES = "host_inodes"
    DISK = "disk"

    @property
    def of_host(self) -> bool:
        """Whether it is that of one host."""
        return self in (Bound.HOST_BYTES, Bound.HOST_INODES)

    @property
    def what(self) -> str:
        """What is counted, in words."""
        return self.rpartition("_")[2] + " of one host" * self.of_host


INODE_BYTES = 26 << 10
"""Of the limit, for each file and folder: chunks of 64 KiB compress to a third or more."""


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


def limits(total_bytes: int, host_bytes: int) -> Limits:
    """Return the limits of a vault, with an inode for each INODE_BYTES."""
    return Limits(total_bytes, host_bytes, total_bytes // INODE_BYTES)


class Usage(NamedTuple):
    """What is kept."""

    size_bytes: int = 0
    inodes: int = 0


def allocated_bytes(size_bytes: int) -> int:
    """Return what a file takes of a disk.

    >>> allocated_bytes(1), allocated_bytes(4096), allocated_bytes(4097)
    (4096, 4096, 8192)
    """
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


class Quota:
    """The room of one vault; may be used by many threads.

    :param here: whose vault it is, for errors
    """

    def __init__(self, limits: Limits, here: str) -> None:
        self.limits = limits
        self._here = here
        self._lock = threading.Lock()
        self._used: collections.defaultdict[ids.HostId, Usage] = collections.defaultdict(Usage)
        self._total = Usage()
        self.refused: collections.Counter[Bound] = collections.Counter()
        """Files and folders that were refused, by the bound that was reached."""
        self._full: set[ids.HostId] = set()

    def reserve(self, owner: ids.HostId, size_bytes: int) -> None:
        """Take the room of a file or folder.

        :raises errors.VaultFull: there is none
        """
        with self._lock:
            for bound, used, limit in self._bounds(owner, allocated_bytes(size_bytes)):
                if used > limit:
                    self._refuse(owner, bound, limit)
            self._add(owner, allocated_bytes(size_bytes), 1)

    def count_existing(self, owner: ids.HostId, size_bytes: int) -> None:
        """Note a file or folder that is there already, whatever the limits are now."""
        with self._lock:
            self._add(owner, allocated_bytes(size_bytes), 1)

    def give_back(self, owner: ids.HostId, size_bytes: int) -> None:
        """Note that a file or folder is there no more."""
        with self._lock:
            self._add(owner, -allocated_bytes(size_bytes), -1)
            if not self._is_nearly_full(self._used[owner]):
                self._full.discard(owner)

    def full_hosts(self) -> int:
        """Return how many hosts have used up their quota, and still use FULL of it."""
        with self._lock:
            return len(self._full)

    def usage_by_host(self) -> dict[ids.HostId, Usage]:
        """Return what is kept for each host."""
        with self._lock:
            return {owner: used for owner, used in self._used.items() if used.inodes}

    def _add(self, owner: ids.HostId, size_bytes: int, inodes: int) -> None:
        one, total = self._used[owner], self._total
        self._used[owner] = Usage(one.size_bytes + size_bytes, one.inodes + inodes)
        self._total = Usage(total.size_bytes + size_bytes, total.inodes + inodes)

    def _bounds(self, owner: ids.HostId, size_bytes: int) -> Iterator[tuple[Bound, int, int]]:
        """Yield each bound, what would be used of it, and the limit."""
        one, total, limits = self._used[owner], self._total, self.limits
        yield Bound.VAULT_BYTES, total.size_bytes + size_bytes, limits.total_bytes
        yield Bound.HOST_BYTES, one.size_bytes + size_bytes, limits.host_bytes
        yield Bound.VAULT_INODES, total.inodes + 1, limits.inodes
        yield Bound.HOST_INODES, one.inodes + 1, limits.host_inodes

    def _is_nearly_full(self, used: Usage) -> bool:
        limits = self.limits
        return (
            used.size_bytes >= FULL * limits.host_bytes or used.inodes >= FULL * limits.host_inodes
        )

    def _refuse(self, owner: ids.HostId, bound: Bound, limit: int) -> None:
        self.refused[bound] += 1
        if bound.of_host and owner not in self._full:
            self._full.add(owner)
            LOG.warning("%s has used up its quota of this vault (%s)", owner, bound)
        raise errors.VaultFull(self._here, f"the limit of {limit} {bound.what} is reached")
