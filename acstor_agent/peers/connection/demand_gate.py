# SPDX-License-Identifier: Apache-2.0
"""Makes bulk connections wait for demand connections that share the uplink."""

import math

import trio

BULK_YIELDS_S = 0.05  # how long bulk data yields to demand data, each time


class DemandGate:
    """Makes bulk connections wait while demand connections make progress."""

    def __init__(self) -> None:
        self._waiting = 0  # demand connections with data in the outbox
        self._last_move = -math.inf
        self._cleared = trio.Event()

    def outbox_filled(self) -> None:
        """Record that a demand connection has data in its outbox."""
        self._waiting += 1
        self.outbox_sent()

    def outbox_sent(self) -> None:
        """Record that some of it was sent."""
        self._last_move = trio.current_time()

    def outbox_emptied(self) -> None:
        """Record that its outbox is empty or was dropped."""
        self._waiting -= 1
        if not self._waiting:
            self._cleared.set()
            self._cleared = trio.Event()

    @property
    def is_open(self) -> bool:
        """Whether bulk data need not wait."""
        return not self._waiting or trio.current_time() - self._last_move >= BULK_YIELDS_S

    async def wait(self) -> None:
        """Wait until demand data is sent or stuck, BULK_YIELDS_S at most."""
        if not self.is_open:
            with trio.move_on_after(BULK_YIELDS_S):
                await self._cleared.wait()
