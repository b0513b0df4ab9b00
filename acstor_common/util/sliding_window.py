# SPDX-License-Identifier: Apache-2.0
"""The growth of counters over a sliding window."""

import collections
from collections.abc import Mapping
from typing import Final

STEP_S: Final = 60.0
"""Between two samples that are kept: the window is longer by less than this, or than the time
between two calls."""


class SlidingWindow:
    """Samples counters now and then, and returns how much they grew within the window.

    >>> window = SlidingWindow(3600.0, now_s=0.0)
    >>> window.grown(10.0, {"late": 2}), window.grown(70.0, {"late": 3})
    ({'late': 2}, {'late': 3})
    >>> window.grown(3680.0, {"late": 4}), window.grown(9000.0, {"late": 4})
    ({'late': 1}, {})

    :param now_s: of a clock that never goes back
    :param totals: the counters now; one that is not named is 0
    """

    def __init__(
        self, window_s: float, now_s: float, totals: Mapping[str, int] | None = None
    ) -> None:
        self._window_s = window_s
        self._samples: collections.deque[tuple[float, dict[str, int]]] = collections.deque()
        self._samples.append((now_s, dict(totals or {})))

    def grown_counters(self, now_s: float, totals: Mapping[str, int]) -> dict[str, int]:
        """Return the counters that grew, and by how much.

        :param totals: one that is below what it was has not grown
        """
        samples = self._samples
        if now_s - samples[-1][0] >= STEP_S:
            samples.append((now_s, dict(totals)))
        while len(samples) > 1 and samples[1][0] <= now_s - self._window_s:
            samples.popleft()
        before = samples[0][1]
        grown = {name: total - before.get(name, 0) for name, total in totals.items()}
        return {name: more for name, more in grown.items() if more > 0}
