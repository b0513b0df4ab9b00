# SPDX-License-Identifier: Apache-2.0
"""Who keeps a mount between two supervisors, and what it knows of why one is to stop."""

import enum
from typing import Protocol

from acstor_agent.mount import fuse_connection


class Stopping(enum.Enum):
    """Why a supervisor is told to stop, as far as its service manager knows."""

    SIGNALLED = enum.auto()  # somebody sent a signal; what is kept is handed to the next one
    UNIT_STOPS = enum.auto()  # the unit is to be stopped, and then nothing is kept
    HOST_STOPS = enum.auto()  # everything ends


class FdStore(Protocol):
    """Who keeps a connection while no supervisor runs."""

    def put(self, connection: fuse_connection.Connection) -> bool:
        """Keep it; return whether that was done."""

    def ensure_kept(self, connection: fuse_connection.Connection, is_kept: bool) -> bool:
        """See to it that it still is kept; return whether it is.

        :param is_kept: whether it was
        """

    def take_connection(self) -> fuse_connection.Connection | None:
        """Return what was kept, None if it is nothing.

        :raises errors.Unusable: another version left it, which this one does not understand
        """

    def drop_connection(self) -> None:
        """Keep nothing any more."""

    def stop_reason(self) -> Stopping:
        """Return why the supervisor is told to stop."""

    def wait_longer(self, why: str) -> None:
        """Do not lose patience while the supervisor cannot stop."""


class NoStore:
    """Nobody keeps it: the mount ends with its supervisor."""

    def put(self, connection: fuse_connection.Connection) -> bool:
        """Keep nothing."""
        return False

    def ensure_kept(self, connection: fuse_connection.Connection, is_kept: bool) -> bool:
        """Keep nothing."""
        return False

    def take_connection(self) -> fuse_connection.Connection | None:
        """Return nothing."""
        return None

    def drop_connection(self) -> None:
        """Have nothing to forget."""

    def stop_reason(self) -> Stopping:
        """Return that somebody sent a signal, nobody knows why."""
        return Stopping.SIGNALLED

    def wait_longer(self, why: str) -> None:
        """Have nobody who waits."""
