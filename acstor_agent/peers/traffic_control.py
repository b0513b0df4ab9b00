# SPDX-License-Identifier: Apache-2.0
"""Rate limits for traffic with other agents, in both directions, and DSCP.

All connections share one :class:`RateLimiter` for each direction. A connection may move bytes while
it is open, and puts it into debt. The connections queue until the debt is over. The algorithm is
virtual scheduling (generic cell rate algorithm, ITU-T I.371).
"""

import math
from typing import NamedTuple

import trio

from acstor_common.model import geometry
from acstor_common.wire import peer_wire

BURST_S = 0.05
"""Length of a burst after a pause, and of one connection's transmission."""
LEAST_STEP_BYTES = 16 * geometry.KIB


class RateLimiter:
    """Limits the bytes per second in the long term; infinite: no limit."""

    def __init__(self, bytes_s: float = math.inf) -> None:
        self.bytes_s = bytes_s
        self.step_bytes: int | None = None
        """Bytes that a connection moves at a time; None: no limit."""
        if bytes_s < math.inf:
            self.step_bytes = max(LEAST_STEP_BYTES, int(BURST_S * bytes_s))
        self._free_s = -math.inf  # when the debt is over
        self._queue = trio.Lock()

    @property
    def is_open(self) -> bool:
        """Whether there is no debt."""
        return self._free_s == -math.inf or self._free_s <= trio.current_time()

    def charge_bytes(self, count: int) -> None:
        """Record moved bytes."""
        if self.step_bytes is not None:
            since_s = max(self._free_s, trio.current_time() - BURST_S)
            self._free_s = since_s + count / self.bytes_s

    async def wait(self) -> None:
        """Wait until the debt is over; without debt, return without a checkpoint."""
        if self.is_open:
            return
        async with self._queue:
            await trio.sleep_until(self._free_s)


class Traffic(NamedTuple):
    """What bounds and marks what all connections with other agents move.

    :param background_dscp: mark of packets that no guest waits for (RFC 2474)
    """

    upload: RateLimiter
    download: RateLimiter
    background_dscp: int = 0

    def dscp_of(self, klass: peer_wire.Klass) -> int:
        """Return the mark of a class of connections."""
        return 0 if klass is peer_wire.Klass.DEMAND else self.background_dscp


def unbounded() -> Traffic:
    """Return no limits and no marks."""
    return Traffic(RateLimiter(), RateLimiter())
