# SPDX-License-Identifier: Apache-2.0
"""Figures 2 to 4 and table 2 of S0: access patterns over the number of hosts."""

import functools
from collections.abc import Sequence

from evaluation.papers import experiment
from evaluation.papers import s0_pattern_rows as printed
from evaluation.papers import s0_patterns as played
from evaluation.papers import s0_pictures

RATES = {
    "Sync-Same": {"direct": 4.4, "acstor-0": 42, "acstor-512": 44, "acstor-inf": 38},
    "Shifted-Same": {"direct": 8.1, "acstor-0": 30, "acstor-512": 43, "acstor-inf": 159},
    "Sync-Disjoint": {"direct": 4.8, "acstor-0": 4.5, "acstor-512": 4.7, "acstor-inf": 4.6},
}
SETTING = (
    "32 nodes on Gigabit Ethernet, a guest on each, a raw image of 4 GB on an NFS server, chunks "
    "of 32 KiB, two neighbours on a ring; ``nfs-qcow2`` reads it on demand, ``scp-tsunami`` "
    "broadcasts it before, ``ac-store`` has thresholds of 0, 512 and infinity."
)
HERE = (
    "Agents in network namespaces of one machine, with links shaped so that two cores can serve "
    "them all. The reader is a thread on the mirror instead of a guest; it neither boots nor has "
    "a cache of its own, so the exchange during the boots of the paper's guests is left out. "
    "Every byte is compared with the image. *direct* are agents without a ring, *broadcast* is "
    "BitTorrent (aria2), chunks have 64 KiB, connections are TLS. *acstor* is the product with "
    "its defaults; *acstor-512* is the variant ``prefetch-by-limit``, whose limit is the same "
    "share of the region as the paper's 16 MiB ({share}); busy hosts refuse requests in all of "
    "them. "
)

SHIFTED_BOUND = (
    "hosts begin 0.8 s apart, so the last one cannot finish before 26.3 s, and the source's link "
    "carries the region 32 times in 48 s: the upper bound is 1.8 x; the paper's guests boot "
    "first, from the same source"
)
BROADCAST_BOUND = (
    "BitTorrent distributes the whole image in little more time than a link needs for it, where "
    "scp-tsunami needs several times as long; the staggered starts take the rest"
)
NOTHING_SHARED = (
    "hosts read nothing in common, so 1.0 is the upper bound (a little more where *direct* reads "
    "ahead past the end of a region), and the paper's gain is what its guests exchange while they "
    "boot"
)
AS_LARGE = (
    "the image is no larger than all regions together, so its broadcast takes no longer on the "
    "source's link; scp-tsunami is several times slower than the link"
)

SYNC_SAME = printed.Claims(played.SYNC_SAME, "2", 7.0, 5.0, RATES["Sync-Same"])
SHIFTED_SAME = printed.Claims(
    played.SHIFTED_SAME,
    "3",
    3.5,
    4.0,
    RATES["Shifted-Same"],
    {"acstor against direct": SHIFTED_BOUND, "acstor against broadcast": BROADCAST_BOUND},
)
SYNC_DISJOINT = printed.Claims(
    played.SYNC_DISJOINT,
    "4",
    round(1 / 0.7, 2),
    round(1 / 0.24, 2),
    RATES["Sync-Disjoint"],
    {"acstor against direct": NOTHING_SHARED, "acstor against broadcast": AS_LARGE},
)


def _sync_same(outcomes: experiment.Outcomes) -> Sequence[experiment.Row]:
    return [*printed.sync_same_only(outcomes), *printed.rows(SYNC_SAME, outcomes)]


def _sync_disjoint(outcomes: experiment.Outcomes) -> Sequence[experiment.Row]:
    return [*printed.disjoint_only(outcomes), *printed.rows(SYNC_DISJOINT, outcomes)]


def _experiment(
    claims: printed.Claims, key: str, title: str, paper_has: str, here: str, rows: object
) -> experiment.Experiment:
    return experiment.Experiment(
        key=key,
        title=title,
        paper_has=f"{SETTING} {paper_has}",
        here=HERE.format(share=f"1/{round(1 / claims.plan.limit_share)}") + here,
        cases=functools.partial(played.cases, claims.plan),
        rows=rows,  # type: ignore[arg-type]
        draw=s0_pictures.draw,
        pairs=printed.pairs,
    )


EXPERIMENTS = (
    _experiment(
        SYNC_SAME,
        "S0-figure-2",
        "Figure 2 and table 2: all hosts read the same region at once",
        "All hosts read the same 1 GB, starting at the same moment.",
        "Links have 400 Mbit/s in total, a region takes 8 s on one, the image has four regions; "
        "*direct* and *broadcast* are run at an eighth and a quarter of this size. The project's "
        "own target for the completion is 1.15 times the limit.",
        _sync_same,
    ),
    _experiment(
        SHIFTED_SAME,
        "S0-figure-3",
        "Figure 3 and table 2: all hosts read the same region, staggered",
        "All hosts read the same 1 GB, each 5 s after the previous one; a link carries that in 9 "
        "s.",
        "A region takes 1.5 s on a link of 50 Mbit/s, and hosts begin 0.8 s apart: few read at a "
        "time, so links need not be slower. *direct* is run at a quarter of this size, "
        "*broadcast* with slower links.",
        functools.partial(printed.rows, SHIFTED_SAME),
    ),
    _experiment(
        SYNC_DISJOINT,
        "S0-figure-4",
        "Figure 4 and table 2: each host reads a region of its own",
        "Each host reads 128 MB of its own at once; together they read the whole image.",
        "The image takes 10 s on the source's link of 100 Mbit/s, whatever the number of hosts. "
        "*broadcast* has slower links. Wasted bytes are those transferred and not read, minus the "
        "same without prefetching, which is read-ahead past the end of a region.",
        _sync_disjoint,
    ),
)
