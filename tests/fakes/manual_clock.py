# SPDX-License-Identifier: Apache-2.0
"""Clocks that a test moves."""

from collections.abc import Callable


class FunctionClock:
    """Returns what functions return.

    :param unix_s: as ``now_s`` if it is left out
    """

    def __init__(
        self, now_s: Callable[[], float], unix_s: Callable[[], float] | None = None
    ) -> None:
        self.monotonic, self.time = now_s, unix_s or now_s


class ManualClock:
    """Both clocks show ``now_s``."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def monotonic(self) -> float:
        """Return ``now_s``."""
        return self.now_s

    time = monotonic
