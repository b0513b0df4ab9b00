# SPDX-License-Identifier: Apache-2.0
"""Limits the rate of log lines that remote hosts or guests can cause."""

from collections.abc import Hashable

from acstor_common.util import lru_table

MAX_KEYS = 1024


class LogLimit:
    """Lets a few lines of each key through per interval, which a key's first line begins.

    >>> limit = LogLimit(every_s=10.0)
    >>> [limit.take_line("disk", now_s) for now_s in (0.0, 1.0, 9.0, 10.0)]
    [0, None, None, 2]
    """

    def __init__(self, every_s: float, lines: int = 1) -> None:
        self._every_s, self._most = every_s, lines
        self._lines: lru_table.LruTable[Hashable, tuple[float, int]] = lru_table.LruTable(MAX_KEYS)

    def __len__(self) -> int:
        return len(self._lines)

    def take_line(self, key: Hashable, now_s: float) -> int | None:
        """Count a line; return how many were suppressed before; None: suppress it too."""
        at_s, count = self._lines.get(key, (now_s - self._every_s, 0))
        if now_s - at_s < self._every_s:
            self._lines[key] = at_s, count + 1
            return 0 if count < self._most else None
        self._lines[key] = now_s, 1
        return max(0, count - self._most)
