# SPDX-License-Identifier: Apache-2.0
"""How much counters grew lately."""

import collections
from collections.abc import Mapping
from typing import Final

WINDOW_S: Final = 3600.0
STEP_S: Final = 60.0
"""Between two looks that are kept, so what grew is that of one step more at most."""


class Lately:
    """Looks at counters now and then, and tells by how much they grew in the last hour.

    >>> lately = Lately(now_s=0.0)
    >>> lately.grown(10.0, {"late": 2}), lately.grown(70.0, {"late": 3})
    ({'late': 2}, {'late': 3})
    >>> lately.grown(3680.0, {"late": 4}), lately.grown(9000.0, {"late": 4})
    ({'late': 1}, {})
    """

    def __init__(self, now_s: float) -> None:
        self._looks: collections.deque[tuple[float, dict[str, int]]] = collections.deque()
        self._looks.append((now_s, {}))

    def grown(self, now_s: float, totals: Mapping[str, int]) -> dict[str, int]:
        """Return those that grew, and by how much.

        :param now_s: of a clock that never goes back
        :param totals: counted since this was made; one that is below what it was has not grown
        """
        looks = self._looks
        if now_s - looks[-1][0] >= STEP_S:
            looks.append((now_s, dict(totals)))
        while len(looks) > 1 and looks[1][0] <= now_s - WINDOW_S:
            looks.popleft()
        before = looks[0][1]
        grown = {name: total - before.get(name, 0) for name, total in totals.items()}
        return {name: more for name, more in grown.items() if more > 0}
