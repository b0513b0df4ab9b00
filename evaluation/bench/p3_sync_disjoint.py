# SPDX-License-Identifier: Apache-2.0
"""P3: Sync-Disjoint of Nicolae 2016 (4.3.3): each host reads a region of its own.

Nothing can be shared, so it measures the overhead of collaboration.  The first figure is the time
of all hosts with one ring over their time without, the median of alternate turns.

The second is the bytes fetched for hosts and not read there, over the bytes read.  From ``status``:
``fetched`` from source, home and peer are the bytes that an agent fetched for its own host, on
demand, by read-ahead or by prefetch; less the length of the host's own region, which must be
fetched once.  A home's reads from the source for another host are in that host's ``fetched``, not
in its own, so they are no waste.  A home that has read a chunk of its own region for another host's
prefetch need not fetch it again; that chunk is missing here, and counts as waste at the other host.
The read-ahead of a sequential reader that stops counts like any other prefetch.
"""

import statistics
from typing import Any

from matplotlib import figure

from acstor_common.model import geometry
from evaluation.bench import broadcast
from evaluation.bench import harness
from evaluation.bench import patterns
from evaluation.bench import pictures

HOSTS = 8
LINK_MBIT = 100
"""The source's link is the limit: the hosts' links carry twice that."""
REGION_BYTES = 32 * geometry.MIB
TURNS = 2
BROADCAST_DIVISOR = 4


@harness.measures("P3")
def run(say: harness.Say) -> harness.Result:
    """Let 8 hosts read 32 MiB each, in turns with and without a ring."""
    broadcast.require_client()
    pattern = patterns.sync_disjoint(HOSTS, LINK_MBIT, REGION_BYTES)
    pair: dict[str, tuple[patterns.Way, patterns.Pattern]] = {
        "acstor": (patterns.with_acstor, pattern),
        "direct": (patterns.direct, pattern),
    }
    turns = [patterns.play(pair, say) for _ in range(TURNS)]
    mean = {name: statistics.mean(turn[name]["completion"] for turn in turns) for name in pair}
    others = {name: (way, pattern) for name, way in patterns.prefetch_ways().items()}
    small = patterns.scaled(pattern, BROADCAST_DIVISOR)
    others["broadcast"] = (patterns.broadcast_first, small)
    found = {**turns[0], **patterns.play(others, say)}
    unread = max(turn["acstor"]["unread_share"] for turn in turns)
    return harness.Result(
        {"P3": (mean["acstor"] / mean["direct"], unread)},
        {"ways": found, "turns": turns},
        lambda picture: draw(picture, found),
    )


def draw(picture: figure.Figure, found: dict[str, Any]) -> None:
    """Draw the ways; bytes above the line of the last panel were not read."""
    title = (
        f"Sync-Disjoint: {HOSTS} hosts read {REGION_BYTES >> 20} MiB each, links {LINK_MBIT} Mbit/s"
    )
    pictures.compare(picture, title, found)
