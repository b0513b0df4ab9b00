# SPDX-License-Identifier: Apache-2.0
"""Growth of counters over a sliding window."""

import collections
from collections.abc import Mapping
from typing import Final

STEP_S: Final = 60.0  # least time between two kept samples: the accuracy of the window


class SlidingWindow:
    """Samples counters, and computes how much they grew within the window; missing ones are 0.

    >>> window = SlidingWindow(3600.0, now_s=0.0)
    >>> window.grown_counters(10.0, {"late": 2}), window.grown_counters(70.0, {"late": 3})
    ({'late': 2}, {'late': 3})
    >>> window.grown_counters(3680.0, {"late": 4}), window.grown_counters(9000.0, {"late": 4})
    ({'late': 1}, {})
    """

    def __init__(
        self, window_s: float, now_s: float, totals: Mapping[str, int] | None = None
    ) -> None:
        self._window_s = window_s
        self._samples: collections.deque[tuple[float, dict[str, int]]] = collections.deque()
        self._samples.append((now_s, dict(totals or {})))

    def grown_counters(self, now_s: float, totals: Mapping[str, int]) -> dict[str, int]:
        """Return the counters that grew, and by how much."""
        samples = self._samples
        if now_s - samples[-1][0] >= STEP_S:
            samples.append((now_s, dict(totals)))
        while len(samples) > 1 and samples[1][0] <= now_s - self._window_s:
            samples.popleft()
        before = samples[0][1]
        grown = {name: total - before.get(name, 0) for name, total in totals.items()}
        return {name: more for name, more in grown.items() if more > 0}
