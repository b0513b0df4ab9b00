# SPDX-License-Identifier: Apache-2.0
"""Limits the rate of log lines that remote hosts or guests can cause.

Of equal lines, one per interval is written, with the number of suppressed ones.
"""

import collections
from collections.abc import Hashable

MAX_KEYS = 1024


class LogLimit:
    """Lets one line of each key through per interval."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._lines: collections.OrderedDict[Hashable, tuple[float, int]] = (
            collections.OrderedDict()
        )

    def __len__(self) -> int:
        """Return the number of remembered keys, MAX_KEYS at most."""
        return len(self._lines)

    def left_out(self, key: Hashable, now_s: float) -> int | None:
        """Return the lines suppressed since the last one; None: suppress this one.

        :param key: equal for lines of one kind
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
