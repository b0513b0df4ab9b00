# SPDX-License-Identifier: Apache-2.0
"""How the hosts of one place stand to those of others: what they give, and whom they ask.

Where the way out of a place is narrow its hosts are home of less for everybody
else: only a share of their v-nodes counts on the rings of wider places.  Within the
place all of them count.  And the homes of a place may ask another wider home before
they read the source than the rest of the table does, or none.

Which v-nodes count follows from the v-nodes' names and the share alone, and a
smaller share is a part of a larger one; so all hosts find the same homes, and a
share that changes moves no more than the difference.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from typing import Annotated

import msgspec

from acstor_common.ring import location
from acstor_common.ring import vnode

FULL_SHARE = 100
MAX_THRESHOLD = location.MAX_LEVELS + 1
FROM_SOURCE = 0
"""An outer threshold nearer than which nobody is: the source is read at once."""


class LocationPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a table says of one place; what it says of no place is the default.

    :param share: percent of the v-nodes of each host there that count beyond it
    :param outer_threshold: the table's, for homes of this group; ``FROM_SOURCE``: they ask nobody
    """

    share: Annotated[int, msgspec.Meta(ge=1, le=FULL_SHARE)] = FULL_SHARE
    outer_threshold: Annotated[int, msgspec.Meta(ge=0, le=MAX_THRESHOLD)] | None = None


LocationPolicies = Mapping[str, LocationPolicy]
"""By location, or the beginning of one."""


def vnode_share(
    places: LocationPolicies, levels: location.Levels, within: location.Levels
) -> float:
    """Return which part of a host's v-nodes counts on the ring of a place.

    >>> places = {"pod1": LocationPolicy(50), "pod1/rack1": LocationPolicy(20)}
    >>> [vnode_share(places, ("pod1", "rack1"), at) for at in ((), ("pod1",), ("pod1", "rack1"))]
    [0.1, 0.2, 1.0]

    :param levels: where the host stands
    :param within: the place of the ring, which the host is in
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
    """Return those v-nodes of a host that count on the ring of a place; see :func:`vnode_share`.

    It is one at least, if the host has any.
    """
    share = vnode_share(places, levels, within)
    if share >= 1.0:
        return names
    ordered = sorted(names)
    return ordered[: max(1, round(share * len(ordered)))]


def outer_threshold_of(
    places: LocationPolicies, group: location.Levels, usual: int | None
) -> int | None:
    """Return the outer threshold of a group, where the table has the usual one."""
    rule = places.get("/".join(group))
    return usual if rule is None or rule.outer_threshold is None else rule.outer_threshold


def check_policies(
    places: LocationPolicies, threshold: int | None, outer_threshold: int | None
) -> None:
    """Look at a table's thresholds, and at what it says of places.

    :raises ValueError: they make no sense
    """
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
