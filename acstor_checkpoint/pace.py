# SPDX-License-Identifier: Apache-2.0
"""How fast a disk is read for a checkpoint.

The one rule: over any time that is longer than a moment, no more than the rate.
"""

import time
from collections.abc import Callable
from typing import Final

_AHEAD_S: Final = 0.1
"""What was not used is saved up for this long: a pause does not end in a burst."""


class Pace:
    """Bounds one reader.

    >>> slept = []
    >>> pace = Pace(1000, clock=lambda: 5.0, sleep=slept.append)
    >>> pace.spend(100), pace.spend(400)
    (None, None)
    >>> slept
    [0.4]

    :param rate_bytes_s: 0: as fast as it goes
    :param clock: monotonic
    """

    def __init__(
        self,
        rate_bytes_s: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._rate_bytes_s, self._clock, self._sleep = rate_bytes_s, clock, sleep
        self._free_at_s = clock() - _AHEAD_S

    def spend(self, count_bytes: int) -> None:
        """Wait until as much may be read."""
        if not self._rate_bytes_s:
            return
        now_s = self._clock()
        self._free_at_s = max(self._free_at_s, now_s - _AHEAD_S) + count_bytes / self._rate_bytes_s
        if self._free_at_s > now_s:
            self._sleep(round(self._free_at_s - now_s, 6))
