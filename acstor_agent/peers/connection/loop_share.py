# SPDX-License-Identifier: Apache-2.0
"""Each peer's share of the event loop.

Small messages cost as much as requests, so each host has a token bucket for them; while it is
empty, nothing is read from the host. Work for a peer starts only in the first millisecond of a
turn, since guests' reads wait for its end. Hosts with many small messages have a slow queue.
"""

import math
from collections.abc import Container
from collections.abc import Hashable
from collections.abc import Sequence
from typing import Protocol

import trio

from acstor_common.util import token_buckets
from acstor_common.wire.peer import peer_wire

SMALL_MESSAGES = token_buckets.Rate(per_s=50.0, burst=100.0)
"""Limit of Pings, Pongs, Cancels and RaisePriorities of no open request; refusals count too."""
REFUSAL_PRICE = 0.25  # of a request; honest hosts are refused too while the source fails
FEW = 40.0  # recent small messages of a host that does not count as sending many
TURN_S = 0.001  # age of a turn of the loop up to which work for a peer may start
MANY_EVERY_S = 0.004  # interval of turns for the hosts that send many small messages
_SMALL = (peer_wire.Ping, peer_wire.Pong, peer_wire.RaisePriority, peer_wire.Cancel)


class LoopTurns(Protocol):
    """Measures the turns of the event loop."""

    @property
    def lasts_s(self) -> float:
        """Duration of the current turn so far."""


class LoopShare:
    """Shares the event loop; ``turns`` None: each turn counts as young."""

    def __init__(
        self,
        limit: int,
        turns: LoopTurns | None = None,
        small_messages: token_buckets.Rate = SMALL_MESSAGES,
    ) -> None:
        self._turns = turns
        self._rate = small_messages
        self._small: token_buckets.TokenBuckets[Hashable] = token_buckets.TokenBuckets(
            small_messages, limit
        )
        self._few, self._many = trio.Lock(), trio.Lock()  # queues; the holder is next
        self._many_at_s = -math.inf  # when the next of the many may continue

    async def reserve_turn(self, sharer: Hashable) -> None:
        """Wait until work for a host and class may start; at once early in a turn."""
        turn_s = self._turns.lasts_s if self._turns is not None else 0.0
        if self._few.locked() or turn_s >= TURN_S or not self.sends_few(sharer):
            await self.next_turn(sharer)

    async def next_turn(self, sharer: Hashable) -> None:
        """Wait for a later turn of the loop."""
        if self.sends_few(sharer):
            async with self._few:
                return
        async with self._many:
            await trio.sleep_until(self._many_at_s)
            self._many_at_s = trio.current_time() + MANY_EVERY_S

    def charge_tokens(self, sharer: Hashable, count: float) -> None:
        """Charge a host and class for messages; it may go into debt by a burst."""
        self._small.charge_tokens(sharer, count, trio.current_time())

    def sends_few(self, sharer: Hashable) -> bool:
        """Return whether a host and class has sent few small messages recently."""
        return self._small.tokens_left(sharer, trio.current_time()) >= self._rate.burst - FEW

    def wait_s(self, sharer: Hashable) -> float:
        """Return for how many seconds nothing may be read from a host and class."""
        missing = 1.0 - self._small.tokens_left(sharer, trio.current_time())
        return max(0.0, missing / self._rate.per_s)


def small_messages(
    messages: Sequence[peer_wire.Message], is_open: Container[int] = frozenset()
) -> int:
    """Count messages to charge: not the first Cancel or RaisePriority of an open or new request."""
    small = [message for message in messages if isinstance(message, _SMALL)]
    named = [
        request
        for request in small
        if isinstance(request, peer_wire.Cancel | peer_wire.RaisePriority)
    ]
    if not named:
        return len(small)
    free, seen = 0, set[int]()
    asked = {
        number
        for message in messages
        if isinstance(message, peer_wire.Get)
        for request in message.requests
        for number in request.numbers
    }
    for message in named:
        new = [number for number in message.request_ids if number not in seen]
        free += any([number in asked or number in is_open for number in new])
        seen.update(new)
    return len(small) - free
