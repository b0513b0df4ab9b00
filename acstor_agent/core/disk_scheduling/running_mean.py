# SPDX-License-Identifier: Apache-2.0
"""Running mean: of all values at first, then mostly of the last ``window``."""


class RunningMean:
    """The mean of values that come one by one.

    >>> mean = RunningMean(window=100)
    >>> for value in (1, 2, 3):
    ...     mean.add(value)
    >>> mean.value
    2.0
    """

    __slots__ = ("_count", "_window", "value")

    def __init__(self, window: int) -> None:
        self._window = window
        self._count = 0
        self.value = 0.0

    def add(self, value: float) -> None:
        """Add a value."""
        self._count = min(self._count + 1, self._window)
        self.value += (value - self.value) / self._count

    def __bool__(self) -> bool:
        """Return whether any value was added."""
        return self._count > 0
