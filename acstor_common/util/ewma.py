# SPDX-License-Identifier: Apache-2.0
"""Exponentially weighted moving average (EWMA)."""


class Ewma:
    """Smoothed mean of values that come one by one; 0.0 before the first.

    :param weight: of the newest value
    :param is_plain_at_first: average the first ``1 / weight`` values equally, so that the very
        first does not dominate

    >>> smooth, plain = Ewma(0.25), Ewma(0.25, is_plain_at_first=True)
    >>> for value in (1, 2, 3):
    ...     smooth.add(value), plain.add(value)
    (1.0, 1.0)
    (1.25, 1.5)
    (1.6875, 2.0)
    """

    __slots__ = ("_is_plain", "_weight", "count", "value")

    def __init__(self, weight: float, *, is_plain_at_first: bool = False) -> None:
        self._weight, self._is_plain = weight, is_plain_at_first
        self.count, self.value = 0, 0.0

    def __bool__(self) -> bool:
        """Return whether any value was added."""
        return self.count > 0

    def add(self, value: float) -> float:
        """Add a value; return the new mean."""
        self.count += 1
        is_plain = self.count == 1 or (self._is_plain and self.count * self._weight < 1.0)
        self.value += (value - self.value) * (1 / self.count if is_plain else self._weight)
        return self.value
