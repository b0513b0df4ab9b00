# SPDX-License-Identifier: Apache-2.0
"""When a loop that failed runs again, and when it has failed too often.

The pause doubles with each failure in a row, up to a limit. A loop that ran for STEADY_S begins
anew with the first pause.

>>> restarts = Restarts(most=3)
>>> [restarts.failed(ran_s=0.1) for _ in range(3)]
[0.5, 1.0, None]
>>> restarts.failed(ran_s=STEADY_S)
0.5
"""

from typing import Final

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
STEADY_S: Final = 60.0
MOST_FAILURES: Final = 10
"""With the pauses between them, that many failures take about two minutes."""


class Restarts:
    """Counts the failures in a row of one loop.

    :param most: failures in a row after which the loop is given up; None: it never is
    """

    def __init__(self, most: int | None = MOST_FAILURES) -> None:
        self._most = most
        self._failures = 0

    def next_pause(self, ran_s: float) -> float | None:
        """Return how many seconds to pause before the loop runs again; None: give it up.

        :param ran_s: how long it ran until it failed
        """
        if ran_s >= STEADY_S:
            self._failures = 0
        self._failures += 1
        if self._most is not None and self._failures >= self._most:
            return None
        doublings = min(self._failures - 1, 16)
        return min(FIRST_PAUSE_S * float(2**doublings), LONGEST_PAUSE_S)
