# SPDX-License-Identifier: Apache-2.0
"""Remaps v-nodes when their counts change: few move, to the most similar hosts.

Wu et al. 2017 (ACStor), section 3.6: a host with too many v-nodes gives them to the host that needs
some and shares most chunks with it, so the new home already has them. A v-node moves only from a
host with too many to one with too few; the rest are removed or created.
"""

import collections
import itertools
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping

from acstor_common.model import ids
from acstor_common.ring import vnode

Names = frozenset[vnode.VNode]
Owners = dict[ids.HostId, Names]  # the v-nodes of each host
Similarity = Callable[[ids.HostId, ids.HostId], float]  # similarity of two hosts, from 0 to 1

CANDIDATES = 64  # hosts compared with a donor, those that need most, to bound the work


def remap_vnodes(
    owners: Mapping[ids.HostId, Names],
    wanted: Mapping[ids.HostId, int],
    similarity: Similarity,
) -> Owners:
    """Return the owners of v-nodes after each host has as many as ``wanted``, others none."""
    if {host: len(names) for host, names in owners.items()} == dict(wanted):
        return dict(owners)
    result = {host: set(owners.get(host, ())) for host in wanted}
    needs = {h: wanted[h] - len(names) for h, names in result.items() if len(names) < wanted[h]}
    for donor in sorted(result):
        surplus = len(result[donor]) - wanted[donor]
        for recipient in _most_alike(donor, needs, similarity):
            if surplus <= 0:
                break
            moved = _choose(result[donor], donor, recipient, min(surplus, needs[recipient]))
            result[donor] -= moved
            result[recipient] |= moved
            surplus -= len(moved)
            needs[recipient] -= len(moved)
            if not needs[recipient]:
                del needs[recipient]
        result[donor] -= _choose(result[donor], donor, donor, max(0, surplus))
    _make(result, needs)
    return {host: frozenset(names) for host, names in result.items()}


def count_moved(old: Mapping[ids.HostId, Names], new: Mapping[ids.HostId, Names]) -> int:
    """Count the v-nodes that are new, gone or have another owner."""
    before = {name: host for host, names in old.items() for name in names}
    after = {name: host for host, names in new.items() for name in names}
    return sum(before.get(name) != after.get(name) for name in before.keys() | after.keys())


def _most_alike(
    donor: ids.HostId, needs: Mapping[ids.HostId, int], similarity: Similarity
) -> list[ids.HostId]:
    if len(needs) < 2:
        return list(needs)
    candidates = sorted(needs, key=lambda host: (-needs[host], host))
    compared = {host: similarity(donor, host) for host in candidates[:CANDIDATES]}
    rest = candidates[CANDIDATES:]
    return [*sorted(compared, key=lambda host: (-compared[host], -needs[host], host)), *rest]


def _choose(
    names: Collection[vnode.VNode], donor: ids.HostId, recipient: ids.HostId, count: int
) -> Names:
    """Return ``count`` v-nodes: the recipient's own, then adopted ones, then others."""

    def order(name: vnode.VNode) -> tuple[bool, bool, ids.HostId, int]:
        return name.made_for != recipient, name.made_for == donor, name.made_for, -name.number

    return frozenset(sorted(names, key=order)[:count]) if count else frozenset()


def _make(result: Mapping[ids.HostId, set[vnode.VNode]], needs: Mapping[ids.HostId, int]) -> None:
    taken: collections.defaultdict[ids.HostId, set[int]] = collections.defaultdict(set)
    for name in itertools.chain.from_iterable(result.values() if needs else ()):
        taken[name.made_for].add(name.number)
    for host, count in needs.items():
        free = (number for number in itertools.count() if number not in taken[host])
        made = itertools.islice(free, count)
        result[host].update(vnode.VNode(host, number) for number in made)
