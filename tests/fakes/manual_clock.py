# SPDX-License-Identifier: Apache-2.0
"""Clocks that a test controls."""

from collections.abc import Callable


class FunctionClock:
    """Clock whose times are those of functions.

    :param unix_s: ``now_s`` if omitted
    """

    def __init__(
        self, now_s: Callable[[], float], unix_s: Callable[[], float] | None = None
    ) -> None:
        self.monotonic, self.time = now_s, unix_s or now_s


class ManualClock:
    """Clock whose times are both ``now_s``."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def monotonic(self) -> float:
        """Return ``now_s``."""
        return self.now_s

    time = monotonic
