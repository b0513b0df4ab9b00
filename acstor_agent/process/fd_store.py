# SPDX-License-Identifier: Apache-2.0
"""Interface of a store that keeps the mount's descriptors between supervisors."""

import enum
from typing import Protocol

from acstor_agent.mount import fuse_connection


class StopReason(enum.Enum):
    """Reason of a supervisor's stop."""

    SIGNALLED = enum.auto()  # by a signal; the next supervisor takes over
    UNIT_STOPS = enum.auto()  # the unit stops, and nothing is kept
    HOST_STOPS = enum.auto()  # the host stops


class FdStore(Protocol):
    """Keeps a connection while no supervisor runs."""

    def store_connection(self, connection: fuse_connection.MountConnection) -> bool:
        """Store it; return whether that worked."""

    def verify_stored(self, connection: fuse_connection.MountConnection, is_stored: bool) -> bool:
        """Check that it is still kept; return whether it is."""

    def take_connection(self) -> fuse_connection.MountConnection | None:
        """Return the kept connection, if any; raise Unusable if it is of another version."""

    def drop_connection(self) -> None:
        """Drop the connection."""

    def stop_reason(self) -> StopReason:
        """Return the reason of the supervisor's stop."""

    def wait_longer(self, why: str) -> None:
        """Extend the stop timeout, because the supervisor cannot stop yet."""


class NoStore:
    """No store: the mount ends with its supervisor."""

    def store_connection(self, connection: fuse_connection.MountConnection) -> bool:
        """Return False."""
        return False

    def verify_stored(self, connection: fuse_connection.MountConnection, is_stored: bool) -> bool:
        """Return False."""
        return False

    def take_connection(self) -> fuse_connection.MountConnection | None:
        """Return None."""
        return None

    def drop_connection(self) -> None:
        """Do nothing."""

    def stop_reason(self) -> StopReason:
        """Return SIGNALLED."""
        return StopReason.SIGNALLED

    def wait_longer(self, why: str) -> None:
        """Do nothing."""
