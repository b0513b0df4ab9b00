# SPDX-License-Identifier: Apache-2.0
"""Measures the event loop's turns; the longest bounds the delay that this process causes."""

import time

import trio

from acstor_agent.core import counters


class LoopLag(trio.abc.Instrument):
    """Measures turns from its creation on."""

    def __init__(self) -> None:
        self.latency = counters.Latency()
        self._began_s: float | None = None
        trio.lowlevel.add_instrument(self)

    def after_io_wait(self, timeout: float) -> None:
        """Record the start of a turn."""
        self._began_s = time.perf_counter()

    @property
    def lasts_s(self) -> float:
        """Duration of the current turn so far."""
        return 0.0 if self._began_s is None else time.perf_counter() - self._began_s

    def before_io_wait(self, timeout: float) -> None:
        """Record the end of a turn."""
        if self._began_s is not None:
            self.latency.add(time.perf_counter() - self._began_s)
