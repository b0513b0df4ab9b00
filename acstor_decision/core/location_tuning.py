# SPDX-License-Identifier: Apache-2.0
"""Location policies of the table: each location's share and its outer threshold.

The waits of hosts elsewhere set a location's share: a slow location gets a lower share at once, and
a higher one only gradually, since it looks fast while its load is low. A group that gets chunks
much faster from nearer homes or from the source takes that way for a while and then retries the
usual one, which nothing measures meanwhile.
"""

import dataclasses
from collections.abc import Collection
from collections.abc import Mapping

from acstor_common.ring import location_policies
from acstor_decision.core import link_capacity
from acstor_decision.core import streak

LEAST_SHARE = 5  # percent; some load must stay to measure the location
MARKED = 2.0  # smaller ratios of shares or waits count as equal
RAISE_AFTER = 12  # consecutive fast collections before a share doubles; a minute
FORGET_AFTER = 60  # collections without figures before a share doubles; five minutes
HOLD = 24  # collections until a group retries the usual way; two minutes
MAX_LOCATIONS = 1024  # limit of locations with a policy; the lowest shares stay
AT_ONCE = 4  # one group in so many may switch to the source with one table


@dataclasses.dataclass
class _Share:
    value: int = location_policies.FULL_SHARE
    slow: int = 0  # collections in a row
    fast: int = 0
    unknown: int = 0
    mildest: int = 0  # the largest target in the streak of slow ones


@dataclasses.dataclass
class _Detour:
    """A group's way other than the usual one, on which a byte took ``usual_wait`` s."""

    outer: int
    usual_wait: float
    age: int = 0
    worse: int = 0


class LocationTuner:
    """Shares and detours; a change needs ``needed`` collections in a row."""

    def __init__(self, needed: int, places: location_policies.LocationPolicies) -> None:
        self._needed = needed
        self._shares: dict[str, _Share] = {}
        self._detours: dict[str, _Detour] = {}
        self._ways: dict[str, streak.Streak[int]] = {}
        self.load_policies(places)

    def load_policies(self, places: location_policies.LocationPolicies) -> None:
        """Adopt the policies of a table that another instance published."""
        self._ways.clear()
        self._shares = {
            p: _Share(r.share) for p, r in places.items() if r.share < location_policies.FULL_SHARE
        }
        self._detours = {
            place: _Detour(rule.outer_threshold, link_capacity.LONGEST)
            for place, rule in places.items()
            if rule.outer_threshold is not None
        }

    def make_policies(
        self, names: Collection[str], groups: Collection[str], near: int
    ) -> dict[str, location_policies.LocationPolicy]:
        """Return the table's location policies; ``groups``: locations whose hosts form one."""
        shares = {place: tuned.value for place, tuned in self._shares.items() if place in names}
        outers = {
            group: tuned.outer
            for group, tuned in self._detours.items()
            if group in groups
            and (tuned.outer == location_policies.FROM_SOURCE or tuned.outer > near)
        }
        policies = {
            place: location_policies.LocationPolicy(
                shares.get(place, location_policies.FULL_SHARE), outers.get(place)
            )
            for place in sorted(shares.keys() | outers.keys())
        }
        slowest = sorted(policies, key=lambda place: policies[place].share)[:MAX_LOCATIONS]
        return {
            place: policies[place]
            for place in slowest
            if policies[place] != location_policies.LocationPolicy()
        }

    def record_slowness(self, slowness: Mapping[str, float]) -> None:
        """Record locations' slowness (:func:`link_capacity.slowness`), once a collection."""
        for place in slowness.keys() | self._shares.keys():
            share = self._shares.setdefault(place, _Share())
            if place in slowness:
                self._follow(share, _target(slowness[place]))
            else:
                self._wait(share)
        self._shares = {p: tuned for p, tuned in self._shares.items() if tuned != _Share()}

    def _follow(self, share: _Share, target: int) -> None:
        share.unknown = 0
        if target * MARKED <= share.value:
            share.slow, share.fast = share.slow + 1, 0
            share.mildest = max(target, share.mildest)
            if share.slow >= self._needed:
                share.value, share.slow, share.mildest = share.mildest, 0, 0
            return
        share.slow = share.mildest = 0
        share.fast = share.fast + 1 if target > share.value else 0
        if share.fast >= RAISE_AFTER:
            share.value, share.fast = _twice(share.value), 0

    def _wait(self, share: _Share) -> None:
        share.slow = share.fast = share.mildest = 0
        share.unknown += 1
        if share.unknown >= FORGET_AFTER:
            share.value, share.unknown = _twice(share.value), 0

    def record_waits(self, usual: int, waits: Mapping[str, Mapping[int, float]]) -> None:
        """Record groups' waits, once a collection; ``usual``: the table's outer threshold."""
        for group in list(self._detours):
            self._check_detour(group, waits.get(group, {}))
        self._ways = {group: self._ways.get(group, streak.Streak(0)) for group in waits}
        gains = {group: self._gain(group, usual, by) for group, by in waits.items()}
        turns = max(1, len(waits) // AT_ONCE)
        for group in sorted(gains, key=lambda group: (-gains[group], group)):
            best = self._ways[group].value
            is_to_source = best == location_policies.FROM_SOURCE
            if gains[group] and (turns or not is_to_source):
                turns -= is_to_source
                self._detours[group] = _Detour(best, waits[group][usual])

    def _gain(self, group: str, usual: int, waits: Mapping[int, float]) -> float:
        """Return the speedup of another way over the usual one; 0 if too small."""
        if group in self._detours or usual not in waits:
            return 0.0
        best = min(waits, key=lambda outer: (waits[outer], -outer))
        is_marked = waits[best] * MARKED <= waits[usual]
        times = self._ways[group].count_value(best if is_marked else usual)
        return waits[usual] / waits[best] if is_marked and times >= self._needed else 0.0

    def _check_detour(self, group: str, waits: Mapping[int, float]) -> None:
        detour = self._detours[group]
        detour.age += 1
        is_worse = waits.get(detour.outer, 0.0) >= detour.usual_wait
        detour.worse = detour.worse + 1 if is_worse else 0
        if detour.age >= HOLD or detour.worse >= self._needed:
            del self._detours[group]


def _target(slowness: float) -> int:
    """Return the share in percent for a location of a slowness.

    >>> _target(1.4), _target(4.0), _target(1000.0)
    (100, 25, 5)
    """
    if slowness < MARKED:
        return location_policies.FULL_SHARE
    return max(LEAST_SHARE, round(location_policies.FULL_SHARE / slowness))


def _twice(share: int) -> int:
    return min(location_policies.FULL_SHARE, 2 * share)
