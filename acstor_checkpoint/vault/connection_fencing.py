# SPDX-License-Identifier: Apache-2.0
"""Fencing of connections: only a disk's latest connection may delete data.

The successor of a killed daemon does not send chunks again that it finds here, and registers a
checkpoint with them.  So a later connection cancels deletions that the killed daemon requested.
"""

import contextlib
import threading
from collections.abc import Iterator

from acstor_checkpoint.vault_protocol import object_names
from acstor_common import errors


class _Turn:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.latest = 0


class ConnectionFencing:
    """Fences the disks of one vault; thread-safe.  Connection numbers increase."""

    def __init__(self) -> None:
        self._turns: dict[object_names.VaultDisk, _Turn] = {}

    def begin_generation(self, disk: object_names.VaultDisk, connection: int) -> None:
        """Fence earlier connections; wait for one that is deleting."""
        turn = self._turns.setdefault(disk, _Turn())
        with turn.lock:
            turn.latest = max(turn.latest, connection)

    @contextlib.contextmanager
    def hold_generation(self, disk: object_names.VaultDisk, connection: int) -> Iterator[None]:
        """Block later connections during the block; VaultRefused if this one is fenced."""
        turn = self._turns.setdefault(disk, _Turn())
        with turn.lock:
            if turn.latest > connection:
                raise errors.VaultRefused(disk.owner, "a later connection accesses this disk")
            yield

    def latest_connection(self, disk: object_names.VaultDisk) -> int:
        """Return the last connection that accessed a disk; 0: none."""
        turn = self._turns.get(disk)
        return turn.latest if turn is not None else 0

    def forget_disk(self, disk: object_names.VaultDisk) -> None:
        """Forget a deleted disk."""
        self._turns.pop(disk, None)
