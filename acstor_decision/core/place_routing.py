# SPDX-License-Identifier: Apache-2.0
"""What the table says of single places: what share they give, and whom their homes ask.

Figures of one collection move nothing, and small differences never do.  A place
that is slow gives less at once; it gives more again by and by, for it looks fast
just because little is asked of it.  A group whose homes get chunks much faster
elsewhere, from nearer homes or from the source, asks there for a while and then
tries the usual way again, since nothing is measured on a way that is not used.

What a place's own hosts say decides whom *they* ask, and what hosts elsewhere
waited for it decides what it gives.
"""

import dataclasses
from collections.abc import Collection
from collections.abc import Mapping

from acstor_common.ring import location_policies
from acstor_decision.core import link_capacity
from acstor_decision.core import streak

LEAST_SHARE = 5
"""Percent: something is always asked of every place, or nobody would notice that it is free."""
MARKED = 2.0
"""Shares and waits that differ by less are alike: half of the load was what did it."""
RAISE_AFTER = 12
"""Collections in a row in which a place has to be fast until it gives twice as much; a minute."""
FORGET_AFTER = 60
"""Collections without figures after which a place gives twice as much; five minutes."""
HOLD = 24
"""Collections until a group tries the usual way again; two minutes."""
MOST_PLACES = 1024
"""Places that a table says something of, those that give least: a table has a bound."""
AT_ONCE = 4
"""One group in so many may turn to the source in one table: the next figures tell what it did."""


@dataclasses.dataclass
class _Share:
    """What one place gives."""

    value: int = location_policies.FULL_SHARE
    slow: int = 0  # collections in a row
    fast: int = 0
    unknown: int = 0
    mildest: int = 0  # of the row of slow ones


@dataclasses.dataclass
class _Detour:
    """The way of a group that does not take the usual one.

    :param usual_wait: what a byte took on the usual way
    """

    outer: int
    usual_wait: float
    age: int = 0
    worse: int = 0


class PlaceRouting:
    """Shares and ways of all places.

    :param needed: collections in a row that it takes
    """

    def __init__(self, needed: int, places: location_policies.LocationPolicies) -> None:
        self._needed = needed
        self._shares: dict[str, _Share] = {}
        self._detours: dict[str, _Detour] = {}
        self._ways: dict[str, streak.Streak[int]] = {}
        self.load_rules(places)

    def load_rules(self, places: location_policies.LocationPolicies) -> None:
        """Go on from a table that somebody else has published."""
        self._ways.clear()
        self._shares = {
            p: _Share(r.share) for p, r in places.items() if r.share < location_policies.FULL_SHARE
        }
        self._detours = {
            place: _Detour(rule.outer_threshold, link_capacity.LONGEST)
            for place, rule in places.items()
            if rule.outer_threshold is not None
        }

    def place_rules(
        self, names: Collection[str], groups: Collection[str], near: int
    ) -> dict[str, location_policies.LocationPolicy]:
        """Return what the table is to say.

        :param names: the places that there are
        :param groups: those of them whose hosts are a group
        :param near: the table's threshold, above which an outer one has to be
        """
        shares = {place: one.value for place, one in self._shares.items() if place in names}
        outers = {
            group: one.outer
            for group, one in self._detours.items()
            if group in groups and (one.outer == location_policies.FROM_SOURCE or one.outer > near)
        }
        said = {
            place: location_policies.LocationPolicy(
                shares.get(place, location_policies.FULL_SHARE), outers.get(place)
            )
            for place in sorted(shares.keys() | outers.keys())
        }
        slowest = sorted(said, key=lambda place: said[place].share)[:MOST_PLACES]
        return {
            place: said[place]
            for place in slowest
            if said[place] != location_policies.LocationPolicy()
        }

    # Shares

    def note_slowness(self, slowness: Mapping[str, float]) -> None:
        """Note, once in a collection, how slow places are (:func:`link_capacity.slowness`)."""
        for place in slowness.keys() | self._shares.keys():
            share = self._shares.setdefault(place, _Share())
            if place in slowness:
                self._follow(share, _target(slowness[place]))
            else:
                self._wait(share)
        self._shares = {p: one for p, one in self._shares.items() if one != _Share()}

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

    # Ways

    def record_waits(self, usual: int, waits: Mapping[str, Mapping[int, float]]) -> None:
        """Note, once in a collection, what chunks cost each group on each way.

        :param usual: the table's outer threshold
        :param waits: see :func:`link_capacity.group_waits`
        """
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
        """Return how many times faster another way is than the usual one; 0: it is not worth it."""
        if group in self._detours or usual not in waits:
            return 0.0
        best = min(waits, key=lambda outer: (waits[outer], -outer))
        is_marked = waits[best] * MARKED <= waits[usual]
        times = self._ways[group].count_value(best if is_marked else usual)
        return waits[usual] / waits[best] if is_marked and times >= self._needed else 0.0

    def _check_detour(self, group: str, waits: Mapping[int, float]) -> None:
        """Let a group go back when it has tried long enough, or when its way became no better."""
        detour = self._detours[group]
        detour.age += 1
        is_worse = waits.get(detour.outer, 0.0) >= detour.usual_wait
        detour.worse = detour.worse + 1 if is_worse else 0
        if detour.age >= HOLD or detour.worse >= self._needed:
            del self._detours[group]


def _target(slowness: float) -> int:
    """Return the share of a place, in percent, that takes so many times longer than others.

    >>> _target(1.4), _target(4.0), _target(1000.0)
    (100, 25, 5)
    """
    if slowness < MARKED:
        return location_policies.FULL_SHARE
    return max(LEAST_SHARE, round(location_policies.FULL_SHARE / slowness))


def _twice(share: int) -> int:
    return min(location_policies.FULL_SHARE, 2 * share)
