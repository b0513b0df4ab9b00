# SPDX-License-Identifier: Apache-2.0
"""Which lines to write to the log where others decide how many there are.

Of lines that are alike one is written in a while, with the number of those left
out, and what is remembered for that is bounded: nobody fills the log, or memory.
"""

import collections
from collections.abc import Hashable

MAX_KEYS = 1024


class LogLimit:
    """Lets one line for each key through.

    :param every_s: so often
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._lines: collections.OrderedDict[Hashable, tuple[float, int]] = (
            collections.OrderedDict()
        )

    def __len__(self) -> int:
        """Return how many kinds of lines are remembered, MAX_KEYS at most."""
        return len(self._lines)

    def left_out(self, key: Hashable, now_s: float) -> int | None:
        """Return how many lines were left out since the last one; None: leave this out, too.

        :param key: what makes lines alike
        :param now_s: of a clock that never goes back
        """
        at_s, count = self._lines.get(key, (now_s - self._every_s, 0))
        if now_s - at_s < self._every_s:
            self._lines[key] = at_s, count + 1
            return None
        self._lines[key] = now_s, 0
        self._lines.move_to_end(key)
        if len(self._lines) > MAX_KEYS:
            self._lines.popitem(last=False)
        return count
