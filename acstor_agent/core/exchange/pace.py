# SPDX-License-Identifier: Apache-2.0
"""Which answers of peers took many times longer than those of other peers.

A host whose link is full answers everything, late.  It never fails, so it would
stay the home of its share of all chunks, and everybody would wait for it.

The one rule: only likes are compared.  What one host took is held against what the
*other* hosts took for the same kind of request of late; so a slow source or a slow
link of this host, which make all answers late, make nobody look slow.
"""

import collections
import enum
import math
import statistics

from acstor_common import ids

TIMES = 4.0
"""A host is slow if its last answer, and those before, took so many times longer than others'."""
SHORTEST_S = 0.25
"""No answer is slow that took less."""
SHARE_OF_NEWEST = 0.25
"""What a host's newest answer counts in what is usual for it."""
MAX_HOSTS = 64
"""Hosts that are compared, those that answered last."""


class Verdict(enum.Enum):
    """What an answer says of who gave it."""

    IN_TIME = enum.auto()
    LATE = enum.auto()
    NOTHING = enum.auto()


class Pace:
    """What the hosts of a cloud take for one kind of request.

    >>> pace = Pace()
    >>> pace.judge(ids.HostId("h1"), 0.1), pace.judge(ids.HostId("h2"), 2.0)
    (<Verdict.IN_TIME: 1>, <Verdict.LATE: 2>)
    """

    def __init__(self) -> None:
        self._usual_s: collections.OrderedDict[ids.HostId, float] = collections.OrderedDict()

    def note(self, host: ids.HostId, took_s: float) -> None:
        """Take note of how long a host took, or took at least."""
        before_s = self._usual_s.pop(host, took_s)
        self._usual_s[host] = before_s + SHARE_OF_NEWEST * (took_s - before_s)
        if len(self._usual_s) > MAX_HOSTS:
            self._usual_s.popitem(last=False)

    def judge(self, host: ids.HostId, took_s: float, is_waited_for: bool = True) -> Verdict:
        """Judge right bytes by the time they took.

        :param is_waited_for: if not, they may be late on purpose, or nearly no bytes at all; that
            says nothing about a host that has been slow
        """
        if is_waited_for:
            self.note(host, took_s)
            return Verdict.LATE if self._is_slow(host, took_s) else Verdict.IN_TIME
        return Verdict.NOTHING if self._is_slow(host, math.inf) else Verdict.IN_TIME

    def _is_slow(self, host: ids.HostId, took_s: float) -> bool:
        """Say whether others are many times faster than this answer and those before it."""
        own_s = min(took_s, self._usual_s.get(host, 0.0))
        others = [usual_s for other, usual_s in self._usual_s.items() if other != host]
        return own_s >= SHORTEST_S and bool(others) and own_s > TIMES * statistics.median(others)
