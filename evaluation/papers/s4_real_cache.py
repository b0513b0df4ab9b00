# SPDX-License-Identifier: Apache-2.0
"""3.3.2 on a real agent: one trace of reads, a small cache, three policies.

The images of 5.7 are read whole, in sequence, by Zipf's law: a few are read most of the time.  The
core's cache, which simulations use, replays the same order of reads.  It has no time: in an agent a
read that waits for the disk is two uses, and chunks in use by a read or write cannot be evicted.
"""

import pathlib
import random
import tempfile
from typing import Any

from acstor_agent.core.cache import cache_slab
from acstor_agent.core.cache import public_cache
from acstor_common import errors
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_policies import cache_orders
from evaluation.bench import collective
from evaluation.bench import harness
from evaluation.papers import s4_real_remap
from tests.lab import local

CACHE_BYTES = 5 * geometry.MIB
"""Two images fit with some space left, and three do not.

If images fit exactly, small time differences decide LRU's hits.
"""
VISITS = 40
POLICIES = {"LRU": "", "LFU": "cache-lfu", "FIFO": "cache-fifo"}
"""The paper's names, and the variants."""
CHUNK = geometry.DEFAULT_CHUNK_BYTES


def visits() -> list[int]:
    """Return the image numbers in read order."""
    weights = [1 / rank for rank in range(1, s4_real_remap.IMAGES + 1)]
    rng = random.Random("visits")
    return rng.choices(range(s4_real_remap.IMAGES), weights, k=VISITS)


def outcome(say: harness.Say, policy: str) -> dict[str, Any]:
    """Read the trace through an agent's mirror; count the cache's hits.

    :param policy: one of POLICIES
    """
    options = {"variants": ",".join(filter(None, ("no-read-ahead", POLICIES[policy])))}
    with (
        tempfile.TemporaryDirectory(prefix="acstor-s4-") as name,
        s4_real_remap.made() as images,
        local.agent(
            pathlib.Path(name) / "h1", images.files, cache_limit_bytes=CACHE_BYTES, **options
        ) as agent,
    ):
        agent.wait_ready()
        for number in visits():
            data, path = images.data(number), agent.image_path(images.ids[number])
            for at in range(0, len(data), CHUNK):
                reading = collective.Reading(((at, CHUNK),), number)
                if collective.compare(path, data, reading, is_direct=True):
                    raise harness.CannotRun(f"wrong bytes at {at} of image {number}")
        read = agent.status()["read"]
        maps = [images.files.map_of(image_id) for image_id in images.ids]
        trace = [maps[number].cid_of(n) for number in visits() for n in range(len(maps[number]))]
    reads = sum(one["requests"] for one in read.values())
    hits = read["cache"]["requests"]
    found = {"reads": reads, "hits": hits, "foreseen_hits": core_hits(trace, policy.lower())}
    say(f"{policy}: {hits} of {reads} reads hit (the core foresees {found['foreseen_hits']})")
    return found


def core_hits(trace: list[ids.Cid], policy: str) -> int:
    """Return the number of hits of the core's cache for a trace."""
    slab_bytes = cache_slab.slab_bytes_for(CACHE_BYTES)
    cache, hits = public_cache.PublicCache(CACHE_BYTES, slab_bytes, cache_orders.ORDERS[policy]), 0
    for cid in trace:
        if cache.lookup(cid) is not None:
            hits += 1
            continue
        try:
            cache.allocate_slot(cid, CHUNK, public_cache.KeepClass.HOME)
        except errors.CacheFull:
            continue
    return hits
