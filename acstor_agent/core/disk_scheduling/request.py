# SPDX-License-Identifier: Apache-2.0
"""A request of the agent to its own disk, and its stream; all files share one address space."""

import dataclasses
import enum
from typing import NamedTuple


class Klass(enum.IntEnum):
    """Class of a request; a lower value goes first."""

    GUEST = 0
    PEER = 1
    BACKGROUND = 2  # the agent's own work, for instance storing chunks
    PREFETCH = 3  # no read waits for it
    FILL = 4  # whole images, here or in a disk's own file


class Stream(NamedTuple):
    """Requests of one guest or peer, or of one kind of background work."""

    klass: Klass
    name: str

    def __str__(self) -> str:
        """Return the name in status and metrics.

        >>> str(Stream(Klass.PEER, "h2"))
        'peer:h2'
        """
        return f"{self.klass.name.lower()}:{self.name}"


READ_EXPIRE_S = 0.125
WRITE_EXPIRE_S = 0.25  # those of Linux 2.6's cfq, which Ling 2015 keeps


@dataclasses.dataclass(eq=False, slots=True)
class DiskRequest:
    """A read or write of ``length`` bytes at ``offset``."""

    stream: Stream
    offset: int
    length: int
    is_write: bool = False
    arrived_s: float = 0.0  # when the scheduler got it; the scheduler sets it
    token: object = None  # identifies the request for the caller

    @property
    def stop(self) -> int:
        """Head position after the request."""
        return self.offset + self.length

    @property
    def expire_s(self) -> float:
        """Seconds from arrival until the request is overdue."""
        return WRITE_EXPIRE_S if self.is_write else READ_EXPIRE_S
