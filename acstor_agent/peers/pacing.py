# SPDX-License-Identifier: Apache-2.0
"""Caps of what this host sends to other agents and receives from them, and how that is marked.

Each direction has one :class:`Pace` for all connections.  What a connection has moved is paid
afterwards: then all connections wait until it is paid, first come, first served.  Who is not read
from stops sending, as TCP has it.  This is virtual scheduling, the generic cell rate algorithm of
ITU-T I.371.
"""

import math
from typing import NamedTuple

import trio

from acstor_common import geometry
from acstor_common import peer_wire

BURST_S = 0.05
"""What was not used is remembered for so long, and one connection moves so much at a time."""
LEAST_STEP_BYTES = 16 * geometry.KIB


class Pace:
    """So many bytes a second.

    :param bytes_s: at most, in the long run; infinite for no cap
    """

    def __init__(self, bytes_s: float = math.inf) -> None:
        self._bytes_s = bytes_s
        self.step_bytes: int | None = None
        """What a connection moves at a time, at most, for others wait meanwhile; None: no cap."""
        if bytes_s < math.inf:
            self.step_bytes = max(LEAST_STEP_BYTES, int(BURST_S * bytes_s))
        self._paid_s = -math.inf  # when all that was moved is paid
        self._queue = trio.Lock()

    @property
    def is_open(self) -> bool:
        """Say whether all that was moved is paid."""
        return self._paid_s == -math.inf or self._paid_s <= trio.current_time()

    def take(self, count: int) -> None:
        """Note that so many bytes were moved."""
        if self.step_bytes is not None:
            since_s = max(self._paid_s, trio.current_time() - BURST_S)
            self._paid_s = since_s + count / self._bytes_s

    async def wait(self) -> None:
        """Return when what was moved before is paid; at once, without a checkpoint, if it is."""
        if self.is_open:
            return
        async with self._queue:
            await trio.sleep_until(self._paid_s)


class Dscp(NamedTuple):
    """How packets are marked: those that guests wait for, and all others (RFC 2474)."""

    guest: int = 0
    background: int = 0

    def of(self, klass: peer_wire.Klass) -> int:
        """Return the mark of a class of connections."""
        return self.guest if klass is peer_wire.Klass.DEMAND else self.background


class Traffic(NamedTuple):
    """What bounds and marks what all connections with other agents move."""

    upload: Pace
    download: Pace
    dscp: Dscp


def unbounded() -> Traffic:
    """Return no caps and no marks."""
    return Traffic(Pace(), Pace(), Dscp())
