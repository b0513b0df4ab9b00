# SPDX-License-Identifier: Apache-2.0
"""Rate limits for traffic with other agents, in both directions, and DSCP.

All connections share one :class:`TrafficLimiter` for each direction. A connection may move bytes
while it is open, and puts it into debt. The connections queue until the debt is over.
"""

import math
from typing import NamedTuple

import trio

from acstor_common.model import geometry
from acstor_common.util import rate_limiter
from acstor_common.wire.peer import peer_wire

BURST_S = 0.05  # length of a burst after a pause, and of one connection's transmission
MIN_STEP_BYTES = 16 * geometry.KIB


class TrafficLimiter(rate_limiter.RateLimiter):
    """Limits the traffic of all connections in one direction; infinite: no limit."""

    def __init__(self, bytes_s: float = math.inf) -> None:
        super().__init__(bytes_s, trio.current_time, BURST_S)
        self.step_bytes: int | None = None
        """Bytes that a connection moves at a time; None: no limit."""
        if bytes_s < math.inf:
            self.step_bytes = max(MIN_STEP_BYTES, int(BURST_S * bytes_s))
        self._queue = trio.Lock()

    async def wait(self) -> None:
        """Wait until the debt is over; without debt, return without a checkpoint."""
        if self.is_open:
            return
        async with self._queue:
            await trio.sleep_until(self.free_s)


class TrafficControl(NamedTuple):
    """Rate limits and marks of the traffic with other agents."""

    upload: TrafficLimiter
    download: TrafficLimiter
    background_dscp: int = 0  # mark of packets that no guest waits for (RFC 2474)

    def dscp_of(self, klass: peer_wire.ConnectionClass) -> int:
        """Return the mark of a class of connections."""
        return 0 if klass is peer_wire.ConnectionClass.DEMAND else self.background_dscp


def unbounded() -> TrafficControl:
    """Return no limits and no marks."""
    return TrafficControl(TrafficLimiter(), TrafficLimiter())
