# SPDX-License-Identifier: Apache-2.0
"""Exponential backoff between restarts of a failing loop.

The pause doubles with each failure in a row, up to a limit; a loop that ran for STEADY_S starts
again with the first pause.

>>> restarts = Restarts(most=3)
>>> [restarts.next_pause(ran_s=0.1) for _ in range(3)]
[0.5, 1.0, None]
>>> restarts.next_pause(ran_s=STEADY_S)
0.5
"""

from typing import Final

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
STEADY_S: Final = 60.0
MOST_FAILURES: Final = 10
"""They take about two minutes with their pauses."""


class Restarts:
    """Counts failures in a row; after ``most`` the loop is given up (None: never)."""

    def __init__(self, most: int | None = MOST_FAILURES) -> None:
        self._most = most
        self._failures = 0

    def next_pause(self, ran_s: float) -> float | None:
        """Return the pause after a failure ``ran_s`` after the start; None: give up."""
        if ran_s >= STEADY_S:
            self._failures = 0
        self._failures += 1
        if self._most is not None and self._failures >= self._most:
            return None
        doublings = min(self._failures - 1, 16)
        return min(FIRST_PAUSE_S * float(2**doublings), LONGEST_PAUSE_S)
