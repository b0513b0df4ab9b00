# SPDX-License-Identifier: Apache-2.0
"""5.4.2 and 5.6 on real agents: all read one region beside uneven traffic (P7).

The paper's most uneven figure: a mean load of 70 MB/s on 1 Gbit/s, and a CV of 1.2 (figure 6(b)).
A host that downloads the region from the source without other readers, beside the same traffic,
gives the lower bound of any exchange for each way: that of P7.
"""

from typing import Any

from acstor_common.model import geometry
from evaluation.bench import collective
from evaluation.bench import harness
from evaluation.bench import p7_remap
from tests.lab import local
from tests.lab import traffic

HOSTS = 9
"""Two of them are busy then, with a load of 1.82 links in plus out.

Seven of the paper's 32 hosts would have 1.83; two of eight would have 1.72.
"""
REGION_BYTES = 3 * geometry.MIB
QUICK_HOSTS, QUICK_REGION_BYTES = 8, 2 * geometry.MIB
COLLABORATIVE, PAPER = "collaborative", "the paper's acstor"
NO_REMAP, ACSTOR = "acstor, no remap", "acstor"
HOMES_ONLY = "no-advertisements,no-referrals,no-hedges,no-source-first"
WAYS: dict[str, tuple[dict[str, object], bool]] = {
    COLLABORATIVE: ({"variants": HOMES_ONLY}, False),
    PAPER: ({"variants": f"{HOMES_ONLY},by-oid,homes-keep"}, True),
    NO_REMAP: ({}, False),
    ACSTOR: ({}, True),
}
"""Options of [acstor_agent], and whether v-nodes may move."""
KEPT = (
    "mean_s",
    "busy_mean_s",
    "idle_mean_s",
    "limit_s",
    "traffic_cv",
    "moved",
    "had_to_move",
)


def outcome(
    say: harness.Say, way: str, hosts: int = HOSTS, region_bytes: int = REGION_BYTES
) -> dict[str, Any]:
    """Let all hosts read in one way.

    :param way: one of WAYS
    """
    options, remap = WAYS[way]
    shares = traffic.loads(hosts, p7_remap.MEAN, p7_remap.CV)
    with collective.images(local.random_bytes(region_bytes, seed=7)) as images:
        found = p7_remap.outcome(images, shares, options, remap)
    source_bytes = sum(found["source_bytes"])
    say(
        f"{way}: mean {found['mean_s']:.1f} s (idle hosts {found['idle_mean_s']:.1f}, busy "
        f"{found['busy_mean_s']:.1f}; alone {found['limit_s']:.1f})"
    )
    kept = {name: round(found[name], 3) for name in KEPT}
    return {**kept, "source_regions": round(source_bytes / region_bytes, 3)}
