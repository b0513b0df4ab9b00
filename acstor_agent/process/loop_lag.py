# SPDX-License-Identifier: Apache-2.0
"""How long the turns of the event loop are.

In a turn everything that is ready is carried on, one after the other, and whatever becomes ready
meanwhile waits for its end.  So the longest turn is the longest that a guest, a peer or a deadline
ever waits for this process itself.
"""

import time

import trio

from acstor_agent.core import counters


class LoopLag(trio.abc.Instrument):
    """Measures turns from now on.

    :ivar latency: how long they were
    """

    def __init__(self) -> None:
        self.latency = counters.Latency()
        self._began_s: float | None = None
        trio.lowlevel.add_instrument(self)

    def after_io_wait(self, timeout: float) -> None:
        """Note that a turn begins."""
        self._began_s = time.perf_counter()

    @property
    def lasts_s(self) -> float:
        """Say how long the turn has lasted that is under way."""
        return 0.0 if self._began_s is None else time.perf_counter() - self._began_s

    def before_io_wait(self, timeout: float) -> None:
        """Note that it is over: nothing is ready."""
        if self._began_s is not None:
            self.latency.add(time.perf_counter() - self._began_s)
