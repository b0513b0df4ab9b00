# SPDX-License-Identifier: Apache-2.0
"""Readahead by vNavigator's sub-region units (Ling 2015, section 3).

A read inside a unit fetches the rest of the unit: the paper expects the next requests there, in any
order.  This helps readers that stay in a region, and costs whole zones where one read would do.
"""

from acstor_agent.core.disk_scheduling import navigator
from acstor_common.util import lru_table

_Range = tuple[int, int]


class UnitReadahead:
    """The prediction for one image: up to ``limit_bytes`` after one read; 0: no readahead.

    >>> ahead = UnitReadahead(limit_bytes=8 << 20)
    >>> ahead.predict_range(4096, 4096, now_s=0.0)
    (0, 2048000)
    >>> ahead.predict_range(8192, 4096, now_s=0.001)
    (0, 0)
    """

    def __init__(self, limit_bytes: int, _source: object = None) -> None:
        self._limit_bytes = limit_bytes
        self._navigator = navigator.Navigator()
        self._requested: lru_table.LruTable[int, None] = lru_table.LruTable(navigator.ZONE_LIMIT)

    def predict_range(self, offset: int, length: int, now_s: float) -> _Range:
        """Record a read; return the range (start, stop) to fetch, perhaps with it; empty: none."""
        if not self._limit_bytes or not length:
            return (0, 0)
        last = offset + length - 1
        self._navigator.request_arrived(last, now_s)
        self._navigator.request_answered(last, now_s)
        unit = self._navigator.unit_at(last)
        return self._unrequested(unit) if unit else (0, 0)

    def _unrequested(self, unit: navigator.Unit) -> _Range:
        size = self._navigator.zone_bytes
        stop = min(unit.stop, unit.start + max(size, self._limit_bytes))
        zones = [z for z in range(unit.start // size, stop // size) if z not in self._requested]
        for zone in zones:
            self._requested[zone] = None
        return (zones[0] * size, (zones[-1] + 1) * size) if zones else (0, 0)
