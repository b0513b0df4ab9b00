# SPDX-License-Identifier: Apache-2.0
"""The order in which chunks leave this host: a few at a time, the most urgent first.

Answers that are sent all at once share the uplink, and all of them arrive late.
Sent one after the other the same bytes arrive after half the time on average,
and whoever has got one can give it to others meanwhile.  So while answers wait
for their turn, requesters who can are referred to hosts that came before them.

An answer keeps its place until it has arrived: what waits in the queues of this
host's kernel and of the network can be overtaken by nothing, and messages wait
behind it.  A receiver that takes long keeps a place for a moment only, and gets
none again before it has caught up.  Where a place is free an answer leaves at once,
and no task is needed; only where answers wait do tasks look after places.
"""

import collections
import weakref
from collections.abc import Callable
from typing import NamedTuple

import trio

from acstor_agent.core.exchange import gossip
from acstor_agent.core.exchange import referral
from acstor_agent.core.exchange import uplink_places
from acstor_agent.peers.connection import base
from acstor_common import ids
from acstor_common import peer_wire

BUSY_QUEUE = 1
"""Answers that wait for their turn from which on requesters are referred to others."""
PATIENCE_S = 0.25

Send = Callable[[], bool]
"""Posts an answer; says whether there was one: nobody may want it any more."""


class _Sent(NamedTuple):
    """Where an answer went, and when."""

    connection: base.Connection
    at_s: float


class Uplink:
    """Gives answers their turn.

    :param is_reachable: whether other hosts could ask a host: it is on the ring
    :param places: how many answers may be under way; as on a link without a queue by default
    """

    def __init__(
        self,
        is_reachable: Callable[[ids.HostId], bool],
        places: uplink_places.UplinkPlaces | None = None,
    ) -> None:
        self._is_reachable = is_reachable
        self._places = places or uplink_places.UplinkPlaces()
        self._waiting: dict[gossip.Urgency, collections.deque[tuple[base.Connection, Send]]] = {
            urgency: collections.deque() for urgency in sorted(gossip.Urgency)
        }
        self._queue_length = 0
        self._unwatched: list[_Sent] = []  # they have a place, and no task waits for them
        self._watched = 0  # places that a task waits for
        self._slow: weakref.WeakSet[base.Connection] = weakref.WeakSet()  # kept a place too long
        self._senders = trio.lowlevel.ParkingLot()
        self._referrals = referral.Referrals()

    def refer(
        self, get: peer_wire.Get, cid: ids.Cid, host: ids.HostId, urgency: gossip.Urgency
    ) -> tuple[ids.HostId, ...]:
        """Return whom ``host`` should ask instead of waiting for its turn here; empty if nobody."""
        if get.may_refer and self._queue_length >= BUSY_QUEUE and self._is_reachable(host):
            return self._referrals.refer(cid, host, urgency)
        return ()

    def put(
        self,
        cid: ids.Cid,
        host: ids.HostId,
        urgency: gossip.Urgency,
        connection: base.Connection,
        send: Send,
    ) -> None:
        """Send an answer at once if there is a place, else in its turn.

        :param send: posts it on ``connection``
        """
        if self._is_reachable(host):
            self._referrals.served(cid, host, urgency=urgency)
        self._unwatched = [sent for sent in self._unwatched if not sent.connection.is_delivered]
        now = trio.current_time()
        if self._unwatched:
            self._places.under_way(now - self._unwatched[0].at_s)
        if not self._queue_length and len(self._unwatched) + self._watched < self._places.count:
            if self._takes_place(connection, send):
                self._unwatched.append(_Sent(connection, now))
            return
        self._waiting[urgency].append((connection, send))
        self._queue_length += 1
        self._senders.unpark()

    def forget(self, connection: base.Connection) -> None:
        """Let go of the answers that wait for a connection which has ended: they are in memory."""
        for urgency, waiting in self._waiting.items():
            left = [item for item in waiting if item[0] is not connection]
            if len(left) < len(waiting):
                self._waiting[urgency] = collections.deque(left)
                self._queue_length -= len(waiting) - len(left)

    async def run(self) -> None:
        """Send what waits for its turn, for ever."""
        async with trio.open_nursery() as nursery:
            for _ in range(uplink_places.MANY):
                nursery.start_soon(self._send_in_turn)

    async def _send_in_turn(self) -> None:
        """Have a place: wait until what is in it has arrived, then send the next."""
        while True:
            if not self._queue_length or self._watched >= self._places.count:
                await self._senders.park()
                continue
            sent = self._unwatched.pop(0) if self._unwatched else self._send_next()
            if sent:
                self._watched += 1
                with trio.move_on_after(PATIENCE_S) as patience:
                    await sent.connection.delivered()
                self._watched -= 1
                if patience.cancelled_caught:
                    self._slow.add(sent.connection)
                    self._unwatched = [
                        other for other in self._unwatched if other.connection not in self._slow
                    ]
                self._places.arrived(trio.current_time() - sent.at_s)
                free = self._places.count - self._watched - 1
                self._senders.unpark(count=max(0, min(free, self._queue_length)))

    def _send_next(self) -> _Sent | None:
        """Send what waits, the most urgent first, else as they came; return where it went."""
        connection, send = next(filter(None, self._waiting.values())).popleft()
        self._queue_length -= 1
        takes_place = self._takes_place(connection, send)
        return _Sent(connection, trio.current_time()) if takes_place else None

    def _takes_place(self, connection: base.Connection, send: Send) -> bool:
        """Send an answer; say whether others are to wait for it."""
        if connection in self._slow and connection.is_delivered:
            self._slow.discard(connection)
        return send() and connection not in self._slow
