# SPDX-License-Identifier: Apache-2.0
"""S4, 3.3.2: the public cache's three eviction orders, over traces of boots."""

import functools
import itertools
import random
from collections.abc import Iterator

from matplotlib import figure

from acstor_agent.core.cache import cache_slab
from acstor_agent.core.cache import public_cache
from acstor_common.model import ids
from acstor_policies import cache_orders
from acstor_simulator.model import boot_traces
from evaluation.bench import harness
from evaluation.papers import experiment

POLICIES = "fifo", "lru", "lfu"
SHARES = 0.25, 0.5
IMAGES, GUESTS, COMMON = 5, 5, 0.3
TURNS = {experiment.Scale.WHOLE: 40, experiment.Scale.QUICK: 10}
"""Number of turns, each with five concurrent boots on the host."""
KINDS = {"boots": 0, "boots beside a scan": 1}
"""Chunks read once and never again, for each chunk that a guest reads."""


def _read(turns: int, scanned: int) -> Iterator[ids.Cid]:
    """Yield a host's reads: guests of random images, five concurrently."""
    rng, scan = random.Random(1), itertools.count()
    images = [
        boot_traces.make_traced_image(n, boot_traces.CHUNKS, COMMON, 1) for n in range(IMAGES)
    ]
    for _ in range(turns):
        reads = []
        for guest in range(GUESTS):
            at_s = rng.uniform(0, 1)
            for think_s, chunk in rng.choice(images).reads:
                at_s += think_s
                reads.append((at_s, guest, chunk.cid))
        for _, _, cid in sorted(reads, key=lambda read: read[:2]):
            yield cid
            for _ in range(scanned):
                yield ids.cid_of(f"scan/{next(scan)}".encode())


def _hits(policy: str, share: float, kind: str, turns: int, say: harness.Say) -> experiment.Outcome:
    """Read all of it through a cache for a share of the boots' reads."""
    different = round(boot_traces.CHUNKS * (COMMON + IMAGES * (1 - COMMON)))
    limit_bytes = round(share * different) * boot_traces.CHUNK_BYTES
    cache = public_cache.PublicCache(
        limit_bytes, cache_slab.slab_bytes_for(limit_bytes), cache_orders.ORDERS[policy]
    )
    reads = hits = 0
    known: set[ids.Cid] = set()
    first = 0
    scanned = KINDS[kind]
    for number, cid in enumerate(_read(turns, scanned)):
        is_boot = not scanned or number % (scanned + 1) == 0
        is_hit = cache.lookup(cid) is not None
        if not is_hit:
            cache.allocate_slot(cid, boot_traces.CHUNK_BYTES, public_cache.KeepClass.BORROWED)
        if is_boot:
            reads, hits, first = reads + 1, hits + is_hit, first + (cid not in known)
            known.add(cid)
    return {
        "reads": reads,
        "hits": round(hits / reads, 4),
        "best": round(1 - first / reads, 4),
        "evictions": cache.evictions,
    }


def _name(policy: str, share: float, kind: str) -> str:
    return f"{kind}, {share:.0%}, {policy}"


def _cases(scale: experiment.Scale) -> list[experiment.Case]:
    turns = TURNS[scale]
    return [
        experiment.Case(
            _name(policy, share, kind),
            functools.partial(_hits, policy, share, kind, turns),
            0.06 * turns,
            is_timed=False,
        )
        for kind, share, policy in itertools.product(KINDS, SHARES, POLICIES)
    ]


def _rows(outcomes: experiment.Outcomes) -> list[experiment.Row]:
    rows = []
    for kind, share in itertools.product(KINDS, SHARES):
        found = {
            policy: outcomes[name]["hits"]
            for policy in POLICIES
            if (name := _name(policy, share, kind)) in outcomes
        }
        fifo = found.get("fifo")
        rows += [
            experiment.Row.over(
                "3.3.2",
                f"{policy}: hit ratio of reads; {kind}, cache of {share:.0%} of the data that "
                "boots read",
                "no number",
                hits,
                "",
                fifo,
                "fifo",
            )
            for policy, hits in found.items()
            if policy != "fifo"
        ]
    return rows


def _draw(picture: figure.Figure, outcomes: experiment.Outcomes) -> None:
    picture.set_size_inches(10, 4)
    panel = picture.subplots()
    groups = list(itertools.product(KINDS, SHARES))
    for place, policy in enumerate(POLICIES):
        names = [_name(policy, share, kind) for kind, share in groups]
        heights = [outcomes[name]["hits"] if name in outcomes else 0.0 for name in names]
        panel.bar([at + 0.25 * place for at in range(len(groups))], heights, 0.25, label=policy)
    labels = [f"{kind}\n{share:.0%} of what they read" for kind, share in groups]
    panel.set_xticks([at + 0.25 for at in range(len(groups))], labels)
    panel.set(ylabel="share of reads that hit", ylim=(0, 1))
    panel.legend()


CACHE = experiment.Experiment(
    key="S4-cache",
    title="3.3.2: FIFO, LRU and LFU over the traces of boots",
    paper_has=(
        "The public cache can evict by FIFO, LRU or LFU; local caches use FIFO and have half the "
        "size of an image. No hit ratios."
    ),
    here=(
        "The agent's own cache (``acstor_agent/core/cache``), with the reads of one host on which "
        "five guests at once boot, 40 times, from five random images; 30 % of their chunks are in "
        "all images. Its size is a quarter or a half of the data that they read. In the second "
        "half a program beside them reads as much, each chunk once. Classes (chunks kept by a "
        "home or for a boot image) are left out."
    ),
    cases=_cases,
    rows=_rows,
    draw=_draw,
)

EXPERIMENTS = (CACHE,)
