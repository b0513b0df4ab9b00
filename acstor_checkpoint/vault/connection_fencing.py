# SPDX-License-Identifier: Apache-2.0
"""Which connection of a host may drop what is kept of a disk: the latest that spoke of it.

A daemon that was killed, or gave up waiting, may have asked for something to be dropped; the next
one finds chunks here, does not send them again, and registers a checkpoint that names
them.  So what was asked before ends when the next connection speaks of the disk.

Who has begun can be sure that nothing goes any more that was asked for before.
"""

import contextlib
import threading
from collections.abc import Iterator

from acstor_checkpoint.vault import object_names
from acstor_common import errors


class _Turn:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.latest = 0


class ConnectionFencing:
    """Of the disks of one vault; may be used by many threads.

    Connections are numbers, later ones larger.
    """

    def __init__(self) -> None:
        self._turns: dict[object_names.Disk, _Turn] = {}

    def begin_generation(self, disk: object_names.Disk, connection: int) -> None:
        """Let no connection before this one drop anything; wait until one has let go."""
        turn = self._turns.setdefault(disk, _Turn())
        with turn.lock:
            turn.latest = max(turn.latest, connection)

    @contextlib.contextmanager
    def hold_generation(self, disk: object_names.Disk, connection: int) -> Iterator[None]:
        """Let nobody else begin in the block.

        :raises errors.VaultRefused: a later connection has
        """
        turn = self._turns.setdefault(disk, _Turn())
        with turn.lock:
            if turn.latest > connection:
                raise errors.VaultRefused(disk.owner, "a later connection speaks of this disk")
            yield

    def latest_connection(self, disk: object_names.Disk) -> int:
        """Return which connection spoke of a disk last; 0: none did."""
        turn = self._turns.get(disk)
        return turn.latest if turn is not None else 0

    def forget_disk(self, disk: object_names.Disk) -> None:
        """Note that nothing is kept of a disk any more."""
        self._turns.pop(disk, None)
