# SPDX-License-Identifier: Apache-2.0
"""One request of the agent to its own disk, and who makes it.

Places are bytes of one address space that holds everything the scheduler looks
after; what lies at which place is the shell's affair.
"""

import dataclasses
import enum
from typing import NamedTuple


class Klass(enum.IntEnum):
    """Who waits for a request; a lower one goes first."""

    GUEST = 0
    PEER = 1
    BACKGROUND = 2  # the agent's own work, such as to store what a guest has been given
    PREFETCH = 3  # what nobody has asked for yet
    FILL = 4  # whole images, here or in a disk's own file


class Stream(NamedTuple):
    """All requests of one guest or peer, or of one kind of work in the background."""

    klass: Klass
    name: str

    def __str__(self) -> str:
        """Return the name by which status and metrics know it.

        >>> str(Stream(Klass.PEER, "h2"))
        'peer:h2'
        """
        return f"{self.klass.name.lower()}:{self.name}"


READ_EXPIRE_S = 0.125
WRITE_EXPIRE_S = 0.25
"""Those of Linux 2.6's cfq, which Ling 2015 keeps."""


@dataclasses.dataclass(eq=False, slots=True)
class Request:
    """A read or write of ``length`` bytes at ``offset``.

    :param arrived_s: when the scheduler got it; the scheduler sets it
    :param token: whatever the caller wants to find again
    """

    stream: Stream
    offset: int
    length: int
    is_write: bool = False
    arrived_s: float = 0.0
    token: object = None

    @property
    def stop(self) -> int:
        """Where the head stands when it is done."""
        return self.offset + self.length

    @property
    def expire_s(self) -> float:
        """How long after its arrival it is overdue."""
        return WRITE_EXPIRE_S if self.is_write else READ_EXPIRE_S
