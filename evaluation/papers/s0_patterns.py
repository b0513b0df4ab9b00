# SPDX-License-Identifier: Apache-2.0
"""The cases of S0's three access patterns (figures 2 to 4, table 2) in the lab.

Sizes are in seconds of a link: a pattern has the same effect on its links at each rate.  So a way
with slower links, because two cores fill no faster ones, has the same ratios.
"""

import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from acstor_common.model import geometry
from acstor_policies import variants
from evaluation.bench import broadcast
from evaluation.bench import harness
from evaluation.bench import patterns
from evaluation.papers import experiment

FILLED_MBIT = 400
"""The sum of all hosts' links that two cores can fill."""
LIMIT = "acstor_agent.core.images.prefetcher.UNMATCHED_LIMIT"
CHUNK_BYTES = geometry.DEFAULT_CHUNK_BYTES
IMAGE_REGIONS = 4
"""The paper reads 1 GB of an image of 4 GB."""
MOST_MBIT = 100.0

ACSTOR, BY_0, BY_512, BY_INF = "acstor", "acstor-0", "acstor-512", "acstor-inf"
DIRECT, DIRECT_AGAIN, BROADCAST = "direct", "direct again", "broadcast"
STRATEGIES = (BY_0, BY_512, BY_INF)
VARIANTS = {
    ACSTOR: None,
    BY_0: variants.Variant.NO_PREFETCH,
    BY_512: variants.Variant.PREFETCH_BY_LIMIT,
    BY_INF: variants.Variant.UNBOUNDED_PREFETCH,
}
KEPT = ("completion", "source_ratio", "unread_share", "cpu_s")


@dataclasses.dataclass(frozen=True)
class Plan:
    """One of the patterns.

    :param make: makes it, from a number of hosts and the rate of links
    :param link_mbit: the rate, by the number of hosts
    :param limit_share: the paper's limit of unmatched chunks, 16 MiB, over its region
    :param direct_divisor: the pattern is smaller by it where the source serves all
    :param counts: numbers of hosts at each scale
    :param quick_ways: ways at the quick scale
    :param without_strategies: numbers of hosts without variants of acstor
    """

    key: str
    make: Callable[[int, float], patterns.Pattern]
    link_mbit: Callable[[int], float]
    limit_share: float
    direct_divisor: int
    counts: dict[experiment.Scale, tuple[int, ...]]
    quick_ways: tuple[str, ...]
    without_strategies: tuple[int, ...] = ()

    def pattern(self, hosts: int) -> patterns.Pattern:
        """Return the pattern as run with acstor."""
        return self.make(hosts, self.link_mbit(hosts))

    def limit_chunks(self, hosts: int) -> int:
        """Return the limit in proportion to the paper's 512 chunks."""
        region_bytes = self.pattern(hosts).readings[0].length
        return max(1, round(self.limit_share * region_bytes / CHUNK_BYTES))


def filled_mbit(hosts: int) -> float:
    """Return the rate of links that two cores can fill concurrently."""
    return min(MOST_MBIT, FILLED_MBIT / hosts)


def region_bytes(seconds: float, link_mbit: float) -> int:
    """Return a link's bytes in a time, in whole chunks."""
    return max(1, round(seconds * link_mbit * 1e6 / 8 / CHUNK_BYTES)) * CHUNK_BYTES


def _sync_same(hosts: int, link_mbit: float) -> patterns.Pattern:
    region = region_bytes(8.0, link_mbit)
    return patterns.sync_same(hosts, link_mbit, region, IMAGE_REGIONS * region)


def _shifted_same(hosts: int, link_mbit: float) -> patterns.Pattern:
    region = region_bytes(1.5, link_mbit)
    return patterns.shifted_same(hosts, link_mbit, region, IMAGE_REGIONS * region, delay_s=0.8)


def _sync_disjoint(hosts: int, link_mbit: float) -> patterns.Pattern:
    return patterns.sync_disjoint(hosts, link_mbit, region_bytes(10.0 / hosts, link_mbit))


_WHOLE, _QUICK = experiment.Scale.WHOLE, experiment.Scale.QUICK
_LEAST = {_WHOLE: (8, 32), _QUICK: (8,)}
SYNC_SAME = Plan(
    "Sync-Same",
    _sync_same,
    filled_mbit,
    1 / 64,
    8,
    {_WHOLE: (1, 8, 16, 32), _QUICK: (8,)},
    (DIRECT, ACSTOR, BROADCAST, DIRECT_AGAIN),
    without_strategies=(16,),
)
SHIFTED_SAME = Plan(
    "Shifted-Same",
    _shifted_same,
    lambda hosts: 50.0,
    1 / 64,
    4,
    _LEAST,
    (DIRECT, ACSTOR),
    without_strategies=(8,),
)
SYNC_DISJOINT = Plan(
    "Sync-Disjoint",
    _sync_disjoint,
    lambda hosts: MOST_MBIT,
    1 / 8,
    1,
    _LEAST,
    (DIRECT, BY_512, BY_INF),
)


def name(way: str, hosts: int) -> str:
    """Return the name of a case.

    >>> name(DIRECT, 8)
    'direct, 8'
    """
    return f"{way}, {hosts}"


def cases(plan: Plan, scale: experiment.Scale) -> Sequence[experiment.Case]:
    """Return the cases of a pattern; the baseline is at both ends of the run."""
    found = [(way, hosts) for hosts in plan.counts[scale] for way in _ways(plan, hosts)]
    found.append((DIRECT_AGAIN, max(plan.counts[scale])))
    if scale is experiment.Scale.QUICK:
        found = [case for case in found if case[0] in plan.quick_ways]
    return [
        experiment.Case(
            name(way, hosts),
            functools.partial(run, plan, way, hosts),
            _about_s(plan, way, hosts),
        )
        for way, hosts in found
    ]


def _ways(plan: Plan, hosts: int) -> tuple[str, ...]:
    """Return the ways for so many hosts: a single one has no neighbours to fetch from."""
    strategies = () if hosts == 1 or hosts in plan.without_strategies else STRATEGIES
    return (DIRECT, BROADCAST, ACSTOR, *strategies)


def _about_s(plan: Plan, way: str, hosts: int) -> float:
    """Return a case's approximate duration: start, stop and reads of hosts."""
    limit_s = plan.pattern(hosts).limit_s
    pace = 1.7 if plan is SYNC_SAME else 1.1
    is_crowded = plan is SYNC_SAME and way in (DIRECT, DIRECT_AGAIN)
    return 4 + 0.4 * hosts + limit_s * (hosts / plan.direct_divisor if is_crowded else pace)


def run(plan: Plan, way: str, hosts: int, say: harness.Say) -> experiment.Outcome:
    """Run a pattern in one of the ways."""
    if way == BROADCAST:
        broadcast.require_client()
        pattern = plan.make(hosts, filled_mbit(hosts) if hosts > 1 else plan.link_mbit(hosts))
        pattern = patterns.scaled(pattern, IMAGE_REGIONS) if plan is SYNC_SAME else pattern
        found = patterns.broadcast_first(pattern)
    elif way in (DIRECT, DIRECT_AGAIN):
        pattern = patterns.scaled(plan.pattern(hosts), plan.direct_divisor if hosts > 1 else 1)
        found = patterns.direct(pattern)
    else:
        pattern = plan.pattern(hosts)
        found = patterns.with_acstor(pattern, **_options(plan, way, hosts))
    say(f"{name(way, hosts)}: {patterns.words(found)}")
    return _kept(pattern, found)


def _options(plan: Plan, way: str, hosts: int) -> dict[str, Any]:
    chosen = VARIANTS[way]
    options: dict[str, Any] = {} if chosen is None else {"variants": chosen}
    if way == BY_512:
        options["constants"] = {LIMIT: plan.limit_chunks(hosts)}
    return options


def _kept(pattern: patterns.Pattern, found: patterns.Outcome) -> experiment.Outcome:
    """Return the stored result: ratios to link rates, bytes as shares of the region."""
    rates = found["rate_over_link"]
    region = pattern.readings[0].length
    kept = {one: found[one] for one in KEPT if isinstance(found.get(one), float | int)}
    moved = found["transfers_bytes"]
    peers = moved["home"] + moved["peer"]
    prefetched = found.get("prefetched_bytes", 0)
    kept["split"] = {
        "from source": moved["source"] / region,
        "peers get": max(0.0, peers - prefetched) / region,
        "peers prefetch": prefetched / region,
    }
    kept["rate"] = {one: rates[one] for one in ("min", "mean", "max")}
    kept["link_mbit"], kept["region_mib"] = pattern.link_mbit, region / geometry.MIB
    return {one: _rounded(value) for one, value in kept.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {one: _rounded(its) for one, its in value.items()}
    return round(value, 5)
