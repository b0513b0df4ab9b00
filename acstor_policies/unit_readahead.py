# SPDX-License-Identifier: Apache-2.0
"""Which part of an image is being read, and what of it to fetch: vNavigator's units.

A read makes its zone denser (core/disk_scheduling/navigator.py, Ling 2015,
section 3).  Where it falls into a sub-region unit, all of that unit that was not
asked for yet is to be fetched: the paper expects the next requests there, in
whatever order.  So this one helps readers that stay in a part of the image
without reading in order, which :class:`readahead.ReadAhead` leaves alone; and it
takes whole zones where one read of them would have been enough.
"""

import collections

from acstor_agent.core.disk_scheduling import navigator

_Range = tuple[int, int]


class UnitAhead:
    """The prediction for one image.

    :param limit_bytes: the most to ask for with one read; 0 turns it off

    >>> ahead = UnitAhead(limit_bytes=8 << 20)
    >>> ahead.read(4096, 4096, now_s=0.0)
    (0, 2048000)
    >>> ahead.read(8192, 4096, now_s=0.001)
    (0, 0)
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._navigator = navigator.Navigator()
        self._asked: collections.OrderedDict[int, None] = collections.OrderedDict()

    def read(self, offset: int, length: int, now_s: float) -> _Range:
        """Take note of a read and return the range (start, stop) to fetch now; empty if none.

        The range may hold what is being read.
        """
        if not self._limit_bytes or not length:
            return (0, 0)
        last = offset + length - 1
        self._navigator.request_arrived(last, now_s)
        self._navigator.request_answered(last, now_s)
        unit = self._navigator.unit_at(last)
        return self._not_asked(unit) if unit else (0, 0)

    def _not_asked(self, unit: navigator.Unit) -> _Range:
        """Return those zones of a unit, which are neighbours, that are asked for the first time."""
        size = self._navigator.zone_bytes
        stop = min(unit.stop, unit.start + max(size, self._limit_bytes))
        zones = [z for z in range(unit.start // size, stop // size) if z not in self._asked]
        for zone in zones:
            self._asked[zone] = None
        while len(self._asked) > navigator.ZONE_LIMIT:
            self._asked.popitem(last=False)
        return (zones[0] * size, (zones[-1] + 1) * size) if zones else (0, 0)
