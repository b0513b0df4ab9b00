# SPDX-License-Identifier: Apache-2.0
"""P2: Shifted-Same of Nicolae 2016 (4.3.2): hosts start reading in sequence.

All read the same region.  The first host seeds all others and can only use the source, so the
second figure is the mean over the others.  A host's throughput is its read bytes over the time from
its own start to its own end; it may exceed the link's rate, since bytes may have arrived before.
Ways as in P1.
"""

import statistics

from acstor_common.model import geometry
from evaluation.bench import broadcast
from evaluation.bench import harness
from evaluation.bench import patterns
from evaluation.bench import pictures

HOSTS = 16
LINK_MBIT = 25
REGION_BYTES = 32 * geometry.MIB
IMAGE_BYTES = 40 * geometry.MIB
DELAY_S = 1.0
BASELINE_DIVISOR = 8


@harness.measures("P2")
def run(say: harness.Say) -> harness.Result:
    """Let 16 hosts read 32 MiB, a second apart, in each of the ways."""
    broadcast.require_client()
    full = patterns.shifted_same(HOSTS, LINK_MBIT, REGION_BYTES, IMAGE_BYTES, DELAY_S)
    small = patterns.scaled(full, BASELINE_DIVISOR)
    found = patterns.play(
        {
            "acstor": (patterns.with_acstor, full),
            **{name: (way, full) for name, way in patterns.prefetch_ways().items()},
            "broadcast": (patterns.broadcast_first, full),
            "direct": (patterns.direct, small),
            "copy first": (patterns.copy_first, small),
        },
        say,
    )
    acstor = found["acstor"]
    followers = statistics.mean(acstor["rate_over_link"]["each"][1:])
    title = (
        f"Shifted-Same: {HOSTS} hosts read {REGION_BYTES >> 20} MiB, {DELAY_S:g} s apart, "
        f"links {LINK_MBIT} Mbit/s"
    )
    return harness.Result(
        {"P2": (acstor["source_ratio"], followers)},
        {"ways": found},
        lambda picture: pictures.compare(picture, title, found),
    )
