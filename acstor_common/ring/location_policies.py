# SPDX-License-Identifier: Apache-2.0
"""Policies of locations: their hosts' weight elsewhere, and outer homes.

If a location's uplink is narrow, only a share of its hosts' v-nodes counts on wider rings.  A
v-node counts by its name and the share alone, and a smaller share is a subset of a larger one: all
hosts compute equal homes, and a new share moves only the difference.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from typing import Annotated

import msgspec

from acstor_common.ring import location
from acstor_common.ring import vnode

FULL_SHARE = 100
MAX_THRESHOLD = location.MAX_LEVELS + 1
FROM_SOURCE = 0  # outer threshold of homes that read the source at once


class LocationPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Policy of one location.

    :param share: percentage of each host's v-nodes that count outside the location
    :param outer_threshold: replaces the table's for homes of this group; or FROM_SOURCE
    """

    share: Annotated[int, msgspec.Meta(ge=1, le=FULL_SHARE)] = FULL_SHARE
    outer_threshold: Annotated[int, msgspec.Meta(ge=0, le=MAX_THRESHOLD)] | None = None


LocationPolicies = Mapping[str, LocationPolicy]  # by location, or a prefix of one


def vnode_share(
    places: LocationPolicies, levels: location.Levels, within: location.Levels
) -> float:
    """Return the share of v-nodes of a host at ``levels`` that counts on the ring of ``within``.

    >>> places = {"pod1": LocationPolicy(50), "pod1/rack1": LocationPolicy(20)}
    >>> [vnode_share(places, ("pod1", "rack1"), at) for at in ((), ("pod1",), ("pod1", "rack1"))]
    [0.1, 0.2, 1.0]
    """
    share = 1.0
    for depth in range(len(within) + 1, len(levels) + 1) if places else ():
        found = places.get("/".join(levels[:depth]))
        share *= found.share / FULL_SHARE if found else 1.0
    return share


def counted_vnodes(
    places: LocationPolicies,
    names: Iterable[vnode.VNode],
    levels: location.Levels,
    within: location.Levels,
) -> Iterable[vnode.VNode]:
    """Return a host's v-nodes that count on a ring; at least one if it has any."""
    share = vnode_share(places, levels, within)
    if share >= 1.0:
        return names
    ordered = sorted(names)
    return ordered[: max(1, round(share * len(ordered)))]


def outer_threshold_of(
    places: LocationPolicies, group: location.Levels, usual: int | None
) -> int | None:
    """Return the outer threshold of a group; ``usual`` unless a policy sets it."""
    rule = places.get("/".join(group))
    return usual if rule is None or rule.outer_threshold is None else rule.outer_threshold


def check_policies(
    places: LocationPolicies, threshold: int | None, outer_threshold: int | None
) -> None:
    """Raise ValueError if a table's thresholds or policies are inconsistent."""
    for number in (threshold, outer_threshold):
        if number is not None and not 1 <= number <= MAX_THRESHOLD:
            raise ValueError(f"threshold {number}, 1 to {MAX_THRESHOLD} are allowed")
    least = MAX_THRESHOLD if threshold is None else threshold
    if outer_threshold is not None and outer_threshold <= least:
        raise ValueError(f"outer_threshold {outer_threshold} is not above threshold {threshold}")
    for place, rule in places.items():
        if not location.parse(place):
            raise ValueError("a place without a name")
        outer = rule.outer_threshold
        if outer not in (None, FROM_SOURCE) and outer <= least:
            raise ValueError(f"{place}: outer_threshold {outer} is not above threshold {threshold}")
