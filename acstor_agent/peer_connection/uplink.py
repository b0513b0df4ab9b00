# SPDX-License-Identifier: Apache-2.0
"""The order in which chunks leave this host: a few at a time, the most urgent first.

Answers that are sent all at once share the uplink, and all of them arrive late.
Sent one after the other the same bytes arrive after half the time on average,
and whoever has got one can give it to others meanwhile.  So while answers wait
for their turn, requesters who can are referred to hosts that came before them.

An answer keeps its place until the kernel has sent it, for what the kernel holds
back can be overtaken by nothing; a receiver that does not read keeps it for a
moment only.  Where a place is free an answer leaves at once, and no task is
needed; only where answers wait do tasks wait for sockets.
"""

import collections
from collections.abc import Callable

import trio

from acstor_agent.core import gossip
from acstor_agent.core import referral
from acstor_agent.peer_connection import base
from acstor_common import ids
from acstor_common import peer_wire

PLACES = 2
"""Answers that are being sent at a time: one to fill the link, one to be ready behind it."""
BUSY_QUEUE = 1
"""Answers that wait for their turn from which on requesters are referred to others."""
PATIENCE_S = 0.25

Send = Callable[[], bool]
"""Posts an answer; says whether there was one: nobody may want it any more."""


class Uplink:
    """Gives answers their turn.

    :param is_reachable: whether other hosts could ask a host: it is on the ring
    """

    def __init__(self, is_reachable: Callable[[ids.HostId], bool]) -> None:
        self._is_reachable = is_reachable
        self._waiting: dict[gossip.Urgency, collections.deque[tuple[base.Connection, Send]]] = {
            urgency: collections.deque() for urgency in sorted(gossip.Urgency)
        }
        self._queue_length = 0
        self._unsent: list[base.Connection] = []  # they have a place, and no task waits for them
        self._watched = 0  # places that a task waits for
        self._senders = trio.lowlevel.ParkingLot()
        self._referrals = referral.Referrals()

    def refer(
        self, get: peer_wire.Get, host: ids.HostId, urgency: gossip.Urgency
    ) -> tuple[ids.HostId, ...]:
        """Return whom ``host`` should ask instead of waiting for its turn here; empty if nobody."""
        if get.may_refer and self._queue_length >= BUSY_QUEUE and self._is_reachable(host):
            return self._referrals.refer(get.cid, host, urgency)
        return ()

    def put(
        self,
        get: peer_wire.Get,
        host: ids.HostId,
        urgency: gossip.Urgency,
        connection: base.Connection,
        send: Send,
    ) -> None:
        """Send an answer at once if there is a place, else in its turn.

        :param send: posts it on ``connection``
        """
        if self._is_reachable(host):
            self._referrals.served(get.cid, host, urgency=urgency)
        self._unsent = [unsent for unsent in self._unsent if not unsent.is_sent]
        if not self._queue_length and len(self._unsent) + self._watched < PLACES:
            if send():
                self._unsent.append(connection)
            return
        self._waiting[urgency].append((connection, send))
        self._queue_length += 1
        self._senders.unpark()

    async def run(self) -> None:
        """Send what waits for its turn, for ever."""
        async with trio.open_nursery() as nursery:
            for _ in range(PLACES):
                nursery.start_soon(self._send_in_turn)

    async def _send_in_turn(self) -> None:
        """Have a place: wait until what is in it has been sent, then send the next."""
        while True:
            if not self._queue_length:
                await self._senders.park()
                continue
            connection = self._unsent.pop() if self._unsent else self._send_next()
            if connection:
                self._watched += 1
                with trio.move_on_after(PATIENCE_S):
                    await connection.sent()
                self._watched -= 1

    def _send_next(self) -> base.Connection | None:
        """Send what waits, the most urgent first, else as they came; return where it went."""
        connection, send = next(filter(None, self._waiting.values())).popleft()
        self._queue_length -= 1
        return connection if send() else None
