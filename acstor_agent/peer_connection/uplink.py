# SPDX-License-Identifier: Apache-2.0
"""The order in which chunks leave this host: a few at a time, the most urgent first.

Answers that are sent all at once share the uplink, and all of them arrive late.
Sent one after the other the same bytes arrive after half the time on average,
and whoever has got one can give it to others meanwhile.  So while answers wait
for their turn, requesters who can are referred to hosts that came before them.

An answer keeps its place until the kernel has sent it (while nobody waits: until
it has taken it); a receiver that does not read keeps it for a moment only.
"""

import collections
import contextlib
from collections.abc import AsyncIterator
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


class Uplink:
    """Gives answers their turn.

    :param is_reachable: whether other hosts could ask a host: it is on the ring
    """

    def __init__(self, is_reachable: Callable[[ids.HostId], bool]) -> None:
        self._is_reachable = is_reachable
        self._free = PLACES
        self._waiting: dict[gossip.Urgency, collections.deque[trio.Event]] = {
            urgency: collections.deque() for urgency in sorted(gossip.Urgency)
        }
        self._referrals = referral.Referrals()

    def refer(
        self, get: peer_wire.Get, host: ids.HostId, urgency: gossip.Urgency
    ) -> tuple[ids.HostId, ...]:
        """Return whom ``host`` should ask instead of waiting for its turn here; empty if nobody."""
        hosts: tuple[ids.HostId, ...] = ()
        is_reachable = self._is_reachable(host)
        if get.may_refer and is_reachable and self._queue_length >= BUSY_QUEUE:
            hosts = self._referrals.refer(get.cid, host, urgency)
        if not hosts and is_reachable:
            self._referrals.served(get.cid, host, urgency=urgency)
        return hosts

    @contextlib.asynccontextmanager
    async def turn(self, urgency: gossip.Urgency) -> AsyncIterator[None]:
        """Wait for a turn, and keep the place inside the block."""
        await self._wait(urgency)
        try:
            yield
        finally:
            self._give_up()

    async def send(self, connection: base.Connection, message: peer_wire.Message) -> None:
        """Send in this turn, as far as the receiver takes it in good time.

        Where others wait the turn lasts until the kernel has sent it: what the kernel holds back
        can be overtaken by nothing.
        """
        connection.post(message)
        if connection.outbox_bytes or self._queue_length:
            with trio.move_on_after(PATIENCE_S):
                await connection.drained()
                if self._queue_length:
                    await connection.sent()

    @property
    def _queue_length(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def _wait(self, urgency: gossip.Urgency) -> None:
        if self._free:
            self._free -= 1
            return
        turn = trio.Event()
        self._waiting[urgency].append(turn)
        try:
            await turn.wait()
        except BaseException:  # given up: the place goes to the next, if it was given already
            if turn.is_set():
                self._give_up()
            else:
                self._waiting[urgency].remove(turn)
            raise

    def _give_up(self) -> None:
        """Pass a place on: the most urgent first, else as they came."""
        for waiting in self._waiting.values():
            if waiting:
                waiting.popleft().set()
                return
        self._free += 1
