# SPDX-License-Identifier: Apache-2.0
"""Each peer's share of the event loop: what small messages cost it, and whose turn it is.

A message that asks for no chunk is cheap to send and costs this host as much as one that does.
Each host has a token bucket for them.  Where it is empty nothing more is read of the host, so the
rest waits with the host itself.
"""

from collections.abc import Container
from collections.abc import Hashable
from collections.abc import Sequence

import trio

from acstor_common import peer_wire
from acstor_common import rates

SMALL_MESSAGES = rates.Rate(per_s=50.0, burst=200.0)
"""Messages of a host and class that bring nobody a chunk: Ping, Pong, a Cancel or Hurry of nothing
that is open, and four requests that are refused."""
REFUSAL_PRICE = 0.25
"""Of a request: honest hosts are refused, too, where the source fails and they ask around."""
FEW = 40.0
"""Messages that a host may have sent lately without having to take turns."""
_SMALL = (peer_wire.Ping, peer_wire.Pong, peer_wire.Hurry, peer_wire.Cancel)


class LoopShare:
    """What all connections of this host share.

    :ivar turns: to be held for what is done in one turn of the event loop: so there is one batch of
        such a connection in a turn, and connections follow each other in their order
    :param limit: of hosts and classes that something is remembered of
    """

    def __init__(self, limit: int) -> None:
        self.turns = trio.Lock()
        self._small: rates.Buckets[Hashable] = rates.Buckets(SMALL_MESSAGES, limit)

    def charge(self, sharer: Hashable, count: float) -> None:
        """Take tokens for messages of a host and class; it may owe a burst."""
        self._small.take(sharer, count, trio.current_time())

    def turns_of(self, sharer: Hashable) -> trio.Lock | None:
        """Return the turns that a host and class has to wait for; None where it sends few."""
        level = self._small.level(sharer, trio.current_time())
        return self.turns if level < SMALL_MESSAGES.burst - FEW else None

    def wait_s(self, sharer: Hashable) -> float:
        """Return for how long nothing may be read of a host and class."""
        missing = 1.0 - self._small.level(sharer, trio.current_time())
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
        one.request_id
        for message in messages
        if isinstance(message, peer_wire.Get)
        for one in message.requests
    }
    for message in named:
        new = [number for number in message.request_ids if number not in seen]
        free += any([number in asked or number in is_open for number in new])
        seen.update(new)
    return len(small) - free
