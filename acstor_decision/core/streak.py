# SPDX-License-Identifier: Apache-2.0
"""Streaks: how often in a row the same value was observed, once in a collection."""

import dataclasses
from typing import Generic
from typing import TypeVar

V = TypeVar("V")


@dataclasses.dataclass
class Streak(Generic[V]):
    """The last value, and how often it was observed in a row.

    >>> length = Streak(1)
    >>> length.observe(4), length.observe(4), length.observe(1)
    (1, 2, 1)
    """

    value: V
    times: int = 0

    def count_value(self, value: V) -> int:
        """Count one more; return how many it has been."""
        self.times = self.times + 1 if value == self.value else 1
        self.value = value
        return self.times
