# SPDX-License-Identifier: Apache-2.0
"""Space accounting of a vault; a file counts as an inode and blocks of 4 KiB."""

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
NEARLY_FULL: Final = 0.95
MAX_DISKS: Final = 4096
MAX_MANIFESTS: Final = 1024


class Bound(enum.StrEnum):
    """A limit; the value is a metric's label."""

    VAULT_BYTES = "vault_bytes"
    VAULT_INODES = "vault_inodes"
    HOST_BYTES = "host_bytes"
    HOST_INODES = "host_inodes"
    DISK = "disk"

    @property
    def is_of_host(self) -> bool:
        """Whether it is a host's quota."""
        return self in (Bound.HOST_BYTES, Bound.HOST_INODES)

    @property
    def resource(self) -> str:
        """The counted resource, for errors."""
        return self.rpartition("_")[2] + " of one host" * self.is_of_host


INODE_BYTES = 26 << 10
"""Of the limit, for each file and folder: chunks of 64 KiB compress to a third or more."""


class VaultLimits(NamedTuple):
    """Limits of a vault."""

    total_bytes: int  # for all hosts; 0: nothing is stored
    host_bytes: int  # for one host
    inodes: int  # for all hosts: chunks, manifests and folders
    disks: int = MAX_DISKS  # per host: sixteen times the instances of a large one
    manifests: int = MAX_MANIFESTS  # per disk: forty days of hourly checkpoints

    @property
    def host_inodes(self) -> int:
        """Inodes for one host, in proportion to its bytes.

        >>> VaultLimits(total_bytes=100, host_bytes=50, inodes=1000).host_inodes
        500
        """
        return min(self.inodes, self.inodes * self.host_bytes // max(1, self.total_bytes))


def limits(total_bytes: int, host_bytes: int) -> VaultLimits:
    """Return the limits of a vault, with an inode for each INODE_BYTES."""
    return VaultLimits(total_bytes, host_bytes, total_bytes // INODE_BYTES)


class Usage(NamedTuple):
    """Used space."""

    size_bytes: int = 0
    inodes: int = 0


def allocated_bytes(size_bytes: int) -> int:
    """Return the size of a file on disk.

    >>> allocated_bytes(1), allocated_bytes(4096), allocated_bytes(4097)
    (4096, 4096, 8192)
    """
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


class Quota:
    """Space accounting of one vault; thread-safe."""

    def __init__(self, limits: VaultLimits, host: str) -> None:
        self.limits = limits
        self._host = host
        self._lock = threading.Lock()
        self._used: collections.defaultdict[ids.HostId, Usage] = collections.defaultdict(Usage)
        self._total = Usage()
        self.refused: collections.Counter[Bound] = collections.Counter()
        """Refused files and folders by limit."""
        self._full: set[ids.HostId] = set()

    def reserve(self, owner: ids.HostId, size_bytes: int) -> None:
        """Reserve space for a file or folder, or raise VaultFull."""
        with self._lock:
            for bound, used, limit in self._bounds(owner, allocated_bytes(size_bytes)):
                if used > limit:
                    self._refuse(owner, bound, limit)
            self._add(owner, allocated_bytes(size_bytes), 1)

    def count_existing(self, owner: ids.HostId, size_bytes: int) -> None:
        """Account for an existing file or folder, regardless of limits."""
        with self._lock:
            self._add(owner, allocated_bytes(size_bytes), 1)

    def release(self, owner: ids.HostId, size_bytes: int) -> None:
        """Release the space of a file or folder."""
        with self._lock:
            self._add(owner, -allocated_bytes(size_bytes), -1)
            if not self._is_nearly_full(self._used[owner]):
                self._full.discard(owner)

    def full_hosts(self) -> int:
        """Return how many hosts exhausted their quota and still use NEARLY_FULL of it."""
        with self._lock:
            return len(self._full)

    def usage_by_host(self) -> dict[ids.HostId, Usage]:
        """Return the usage of each host."""
        with self._lock:
            return {owner: used for owner, used in self._used.items() if used.inodes}

    def _add(self, owner: ids.HostId, size_bytes: int, inodes: int) -> None:
        usage, total = self._used[owner], self._total
        self._used[owner] = Usage(usage.size_bytes + size_bytes, usage.inodes + inodes)
        self._total = Usage(total.size_bytes + size_bytes, total.inodes + inodes)

    def _bounds(self, owner: ids.HostId, size_bytes: int) -> Iterator[tuple[Bound, int, int]]:
        usage, total, limits = self._used[owner], self._total, self.limits
        yield Bound.VAULT_BYTES, total.size_bytes + size_bytes, limits.total_bytes
        yield Bound.HOST_BYTES, usage.size_bytes + size_bytes, limits.host_bytes
        yield Bound.VAULT_INODES, total.inodes + 1, limits.inodes
        yield Bound.HOST_INODES, usage.inodes + 1, limits.host_inodes

    def _is_nearly_full(self, used: Usage) -> bool:
        limits = self.limits
        return (
            used.size_bytes >= NEARLY_FULL * limits.host_bytes
            or used.inodes >= NEARLY_FULL * limits.host_inodes
        )

    def _refuse(self, owner: ids.HostId, bound: Bound, limit: int) -> None:
        self.refused[bound] += 1
        if bound.is_of_host and owner not in self._full:
            self._full.add(owner)
            LOG.warning("%s has used up its quota of this vault (%s)", owner, bound)
        raise errors.VaultFull(self._host, f"the limit of {limit} {bound.resource} is reached")
