# SPDX-License-Identifier: Apache-2.0
"""Exponential backoff: the pause doubles with each failure in a row, up to a limit."""

from typing import Final

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
STEADY_S: Final = 60.0
MAX_FAILURES: Final = 10  # they take about two minutes with their pauses


def pause_s(failures: int, first_s: float, longest_s: float) -> float:
    """Return the pause after so many earlier failures in a row.

    >>> [pause_s(failures, 0.1, 2.0) for failures in (0, 1, 4, 5, 5000)]
    [0.1, 0.2, 1.6, 2.0, 2.0]
    """
    return min(first_s * 2.0 ** min(failures, 30), longest_s)


class Restarts:
    """Pauses between restarts of a loop; after a run of STEADY_S the first pause is next.

    :param most: failures in a row after which the loop is given up (None: never)

    >>> restarts = Restarts(most=3)
    >>> [restarts.next_pause(ran_s=0.1) for _ in range(3)]
    [0.5, 1.0, None]
    >>> restarts.next_pause(ran_s=STEADY_S)
    0.5
    """

    def __init__(self, most: int | None = MAX_FAILURES, first_s: float = FIRST_PAUSE_S) -> None:
        self._most, self._first_s = most, first_s
        self._failures = 0

    def next_pause(self, ran_s: float) -> float | None:
        """Return the pause after a failure ``ran_s`` after the start; None: give up."""
        if ran_s >= STEADY_S:
            self._failures = 0
        self._failures += 1
        if self._most is not None and self._failures >= self._most:
            return None
        return pause_s(self._failures - 1, self._first_s, LONGEST_PAUSE_S)
