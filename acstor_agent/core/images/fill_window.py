# SPDX-License-Identifier: Apache-2.0
"""How many chunks a fill has in flight: what its route carries, without a queue before guests."""

from typing import NamedTuple

from acstor_common.model import geometry

FEW = 8  # chunks: the most beside guests of a near source, the least without
MOST_BYTES = 8 * geometry.MIB  # the exchange starts 64 chunks, and queues the others
SERVED_S = 0.02  # time that a provider has, beside the round trip
SPEEDUP = 2.0  # bytes in flight over those that arrive in this time, so that the speed can grow
FULL_GROWTH, FULL_ROUNDS = 1.25, 3


class Route(NamedTuple):
    """The way from the source to this host."""

    rtt_s: float
    is_far: bool
    bytes_s: float  # of chunks, by the rate of the fill; may be infinite
    hosts: int  # of the group; they share MOST_BYTES of a far source


class SlowStart:
    """How many chunks may be in flight until the rate stops growing: as many more as arrive.

    A round ends when as many arrived as were allowed at its start. The rate has stopped growing
    after FULL_ROUNDS rounds without FULL_GROWTH, as in BBR (Cardwell 2016).

    :ivar limit: 0 after the start
    """

    def __init__(self, first: int) -> None:
        self.limit = self._round_chunks = first
        self._began_s, self._arrived = 0.0, 0
        self._best_per_s, self._flat_rounds = 0.0, 0

    def begin_round(self, now_s: float) -> None:
        """Begin a round; what arrived since the last one is not counted."""
        self._began_s, self._arrived, self._round_chunks = now_s, 0, self.limit

    def count_arrived(self, count: int, now_s: float) -> None:
        """Count chunks that arrived."""
        if not self.limit:
            return
        self.limit += count
        self._arrived += count
        if self._arrived < self._round_chunks or now_s <= self._began_s:
            return
        per_s = self._arrived / (now_s - self._began_s)
        if per_s >= FULL_GROWTH * self._best_per_s:
            self._best_per_s, self._flat_rounds = per_s, 0
        else:
            self._flat_rounds += 1
        self.begin_round(now_s)
        if self._flat_rounds == FULL_ROUNDS:
            self.limit = 0


def most_bytes(
    slow_start: SlowStart,
    route: Route,
    recent_bytes_s: float,
    chunk_bytes: int,
    *,
    is_beside_guests: bool,
) -> float:
    """Return the limit of bytes in flight; beside guests, what the rate carries in a round trip."""
    few_bytes = FEW * chunk_bytes
    grown_bytes = SPEEDUP * (route.rtt_s + SERVED_S) * recent_bytes_s
    if route.is_far:
        grown_bytes = max(grown_bytes, slow_start.limit * chunk_bytes)
    limit_bytes = max(few_bytes, min(MOST_BYTES, grown_bytes))
    if not is_beside_guests:
        return limit_bytes
    own_bytes = MOST_BYTES / route.hosts if route.is_far else 0.0
    carried_bytes = route.rtt_s * route.bytes_s if route.rtt_s else 0.0
    return min(limit_bytes, max(few_bytes, own_bytes), carried_bytes)
