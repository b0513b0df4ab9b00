# SPDX-License-Identifier: Apache-2.0
"""Hosts that read one package from two repositories, in the paper's three ways.

``direct`` is its nfs-direct: each host without peers, on demand.  ``simple`` is collab-simple: a
ring for each repository's hosts, with chunks identified by place.  ``content`` is collab-dedup: one
ring for all, with chunks identified by content.  ``content, ring`` is that with the variant
``ring``: hosts in lockstep pass chunks around a ring.
"""

import statistics
from collections.abc import Sequence
from typing import Any

from acstor_common.model import geometry
from acstor_policies import variants
from evaluation.bench import collective
from evaluation.bench import harness
from evaluation.bench import patterns
from evaluation.papers import experiment
from evaluation.papers import s3_repositories as repositories
from tests.lab import common_images

LINK_MBIT = 25
DIRECT, SIMPLE, CONTENT, RING = "direct", "simple", "content", "content, ring"
OPTIONS: dict[str, dict[str, object]] = {
    DIRECT: {},
    SIMPLE: {"variants": variants.Variant.BY_PLACE},
    CONTENT: {},
    RING: {"variants": variants.Variant.RING},
}


def play(
    way: str,
    counts: Sequence[int],
    say: harness.Say,
    *,
    chunk_bytes: int = geometry.DEFAULT_CHUNK_BYTES,
    delays_s: Sequence[float] = (),
) -> experiment.Outcome:
    """Let hosts read the common package in a new lab.

    :param counts: number of hosts of each repository
    :param delays_s: start of each repository's hosts after the first one's; default: at once
    """
    made = repositories.made(max(2, len(counts)), chunk_bytes)
    readers = [number for number, count in enumerate(counts) for _ in range(count)]
    readings = tuple(
        collective.Reading(made.spans[n], n, delays_s[n] if delays_s else 0.0) for n in readers
    )
    pattern = patterns.Pattern(
        "one package",
        len(readers),
        LINK_MBIT,
        common_images.IMAGE_BYTES,
        readings,
        made.common_bytes,
    )
    found = patterns.on_demand(pattern, made.images, groups_of(way, readers), OPTIONS[way])
    reported = stored_result(found, pattern, readers)
    say(
        f"{way}: {reported['mean_s']:.2f} s ({reported['min_s']:.2f} to {reported['max_s']:.2f}), "
        f"{reported['source_ratio']:.2f} packages from the source"
    )
    return reported


def groups_of(way: str, readers: Sequence[int]) -> list[list[int]]:
    """Return the groups of hosts that share a ring.

    >>> groups_of("simple", [0, 1, 1]), groups_of("content", [0, 1, 1]), groups_of("direct", [0])
    ([[0], [1, 2]], [[0, 1, 2]], [])
    """
    if way == DIRECT:
        return []
    if way == SIMPLE:
        return [[host for host, n in enumerate(readers) if n == no] for no in sorted(set(readers))]
    return [list(range(len(readers)))]


def stored_result(
    found: patterns.Outcome, pattern: patterns.Pattern, readers: Sequence[int]
) -> experiment.Outcome:
    """Return the stored result of a run: seconds, and bytes as shares of the package."""
    took_s = found["took_s"]
    by_repository: dict[str, Any] = {
        f"mean_s_{no + 1}": _mean(took_s[host] for host, n in enumerate(readers) if n == no)
        for no in sorted(set(readers))
    }
    package = pattern.readings[0].length
    received = {name: count / package for name, count in found["transfers_bytes"].items()}
    ahead = found["prefetched_bytes"] / package
    return {
        "hosts": len(readers),
        "mean_s": _mean(took_s),
        "min_s": round(min(took_s), 3),
        "max_s": round(max(took_s), 3),
        **by_repository,
        "limit_s": round(package / pattern.link_bytes_s, 3),
        "source_ratio": round(found["source_ratio"], 4),
        "from_source": round(received["source"], 4),
        "prefetched": round(ahead, 4),
        "on_demand": round(received["home"] + received["peer"] - ahead, 4),
        "fallbacks": found["fallbacks"],
    }


def _mean(values: Any) -> float:
    return round(statistics.mean(values), 3)


def compare(
    counts: Sequence[int], say: harness.Say, *, ways: Sequence[str] = (SIMPLE, CONTENT), **more: Any
) -> experiment.Outcome:
    """Run several ways in sequence; ``more`` is as for :func:`play`."""
    return {way: play(way, counts, say, **more) for way in ways}
