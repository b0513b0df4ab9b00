# SPDX-License-Identifier: Apache-2.0
"""Each peer's share of the event loop: what small messages cost it, and whose turn it is.

A message that asks for no chunk is cheap to send and costs this host as much as one that does.
Each host has a token bucket for them.  Where it is empty nothing more is read of the host, so the
rest waits with the host itself.

A guest's read waits until the turn of the loop is over in which it comes.  So work for a peer
begins only in the first millisecond of a turn, and what comes later waits for a later turn, in
which no other of its queue goes on.  Hosts that send many small messages have a queue of their own,
which is slow: it leaves most of the loop to others.
"""

import math
from collections.abc import Callable
from collections.abc import Container
from collections.abc import Hashable
from collections.abc import Sequence

import trio

from acstor_common.util import token_buckets
from acstor_common.wire import peer_wire

SMALL_MESSAGES = token_buckets.Rate(per_s=50.0, burst=100.0)
"""Messages of a host and class that bring nobody a chunk: Ping, Pong, a Cancel or Hurry of nothing
that is open, and four requests that are refused."""
REFUSAL_PRICE = 0.25
"""Of a request: honest hosts are refused, too, where the source fails and they ask around."""
FEW = 40.0
"""Messages that a host may have sent lately without being one that sends many."""
TURN_S = 0.001
"""How long a turn of the loop has lasted, at most, when work for a peer begins in it."""
MANY_EVERY_S = 0.004
"""How often one of the hosts that send many small messages has a turn."""
_SMALL = (peer_wire.Ping, peer_wire.Pong, peer_wire.Hurry, peer_wire.Cancel)


class LoopShare:
    """What all connections of this host share.

    :param limit: of hosts and classes that something is remembered of
    :param turn_s: returns how long the turn of the event loop has lasted that is under way
    """

    def __init__(self, limit: int, turn_s: Callable[[], float] = lambda: 0.0) -> None:
        self._turn_s = turn_s
        self._small: token_buckets.TokenBuckets[Hashable] = token_buckets.TokenBuckets(
            SMALL_MESSAGES, limit
        )
        self._few, self._many = trio.Lock(), trio.Lock()  # queues; their holders are next
        self._many_at_s = -math.inf  # when the next one of those may go on

    async def reserve_turn(self, sharer: Hashable) -> None:
        """Return when work for a host and class may begin: at once where the turn is young."""
        if self._few.locked() or self._turn_s() >= TURN_S or not self.sends_few(sharer):
            await self.next_turn(sharer)

    async def next_turn(self, sharer: Hashable) -> None:
        """Return in a later turn of the loop."""
        if self.sends_few(sharer):
            async with self._few:
                return
        async with self._many:
            await trio.sleep_until(self._many_at_s)
            self._many_at_s = trio.current_time() + MANY_EVERY_S

    def charge_tokens(self, sharer: Hashable, count: float) -> None:
        """Take tokens for messages of a host and class; it may owe a burst."""
        self._small.charge_tokens(sharer, count, trio.current_time())

    def sends_few(self, sharer: Hashable) -> bool:
        """Say that a host and class has sent few small messages lately."""
        return self._small.tokens_left(sharer, trio.current_time()) >= SMALL_MESSAGES.burst - FEW

    def wait_s(self, sharer: Hashable) -> float:
        """Return for how long nothing may be read of a host and class."""
        missing = 1.0 - self._small.tokens_left(sharer, trio.current_time())
        return max(0.0, missing / SMALL_MESSAGES.per_s)


def small_messages(
    messages: Sequence[peer_wire.Message], is_open: Container[int] = frozenset()
) -> int:
    """Return how many of the messages that came together are to be paid for.

    A Cancel or a Hurry is free if it names a request that is open or came with it, and that no
    other one among them names.

    :param is_open: requests that wait for an answer
    """
    small = [message for message in messages if isinstance(message, _SMALL)]
    named = [one for one in small if isinstance(one, peer_wire.Cancel | peer_wire.Hurry)]
    if not named:
        return len(small)
    free, seen = 0, set[int]()
    asked = {
        number
        for message in messages
        if isinstance(message, peer_wire.Get)
        for one in message.requests
        for number in one.numbers
    }
    for message in named:
        new = [number for number in message.request_ids if number not in seen]
        free += any([number in asked or number in is_open for number in new])
        seen.update(new)
    return len(small) - free
