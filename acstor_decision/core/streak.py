# SPDX-License-Identifier: Apache-2.0
"""Counts consecutive observations of one value."""

import dataclasses
from typing import Generic
from typing import TypeVar

V = TypeVar("V")


@dataclasses.dataclass
class Streak(Generic[V]):
    """The last value, and its number of consecutive observations.

    >>> length = Streak(1)
    >>> length.count_value(4), length.count_value(4), length.count_value(1)
    (1, 2, 1)
    """

    value: V
    times: int = 0

    def count_value(self, value: V) -> int:
        """Record an observation; return the length of the streak."""
        self.times = self.times + 1 if value == self.value else 1
        self.value = value
        return self.times
