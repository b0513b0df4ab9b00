# SPDX-License-Identifier: Apache-2.0
"""Rate limit in bytes per second: virtual scheduling (ITU-T I.371).

Bytes may be moved while there is no debt, and cause a debt; the caller sleeps itself.
"""

import math
from collections.abc import Callable
from typing import Final

_BURST_S: Final = 0.1


class RateLimiter:
    """Limits the bytes per second in the long term.

    :param burst_s: unused time that is credited at most, so that a pause causes no burst

    >>> now_s = [100.0]
    >>> limiter = RateLimiter(1000, lambda: now_s[0])
    >>> round(limiter.wait_s(600), 3), round(limiter.wait_s(100), 3)
    (0.5, 0.6)
    >>> now_s[0] += 3600.0
    >>> round(limiter.wait_s(100), 3), round(limiter.wait_s(100), 3)
    (0.0, 0.1)
    """

    def __init__(
        self, bytes_s: float, clock: Callable[[], float], burst_s: float = _BURST_S
    ) -> None:
        self.bytes_s = bytes_s  # infinite: no limit
        self.free_s = -math.inf  # when the debt is over
        self._clock, self._burst_s = clock, burst_s

    @property
    def is_open(self) -> bool:
        """Whether there is no debt."""
        return self.free_s == -math.inf or self.free_s <= self._clock()

    def charge_bytes(self, count: int) -> None:
        """Record moved bytes."""
        if self.bytes_s < math.inf:
            since_s = max(self.free_s, self._clock() - self._burst_s)
            self.free_s = since_s + count / self.bytes_s

    def wait_s(self, count: int) -> float:
        """Record bytes, and return how long to wait for the end of the debt."""
        self.charge_bytes(count)
        return max(0.0, self.free_s - self._clock())
