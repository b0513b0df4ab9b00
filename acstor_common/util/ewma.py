# SPDX-License-Identifier: Apache-2.0
"""Exponentially weighted moving average (EWMA)."""


class Ewma:
    """Smoothed mean of values that come one by one; 0.0 and false before the first.

    The first ``window`` values are averaged equally; later, the newest has the weight 1 / window.

    >>> mean = Ewma(window=2)
    >>> [mean.add(value) for value in (1, 2, 3)]
    [1.0, 1.5, 2.25]
    """

    __slots__ = ("_count", "_window", "value")

    def __init__(self, window: int) -> None:
        self._window = window
        self._count = 0
        self.value = 0.0

    def __bool__(self) -> bool:
        return self._count > 0

    def add(self, value: float) -> float:
        """Add a value; return the new mean."""
        self._count = min(self._count + 1, self._window)
        self.value += (value - self.value) / self._count
        return self.value
