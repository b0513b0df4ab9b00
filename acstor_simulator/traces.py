# SPDX-License-Identifier: Apache-2.0
"""What a guest reads while it boots, and how long it thinks in between.

A trace is a list of reads: seconds of thought, then a chunk number.  The default
is made up to the measure of one real boot (a Debian guest of 1 GiB under Nova):
976 chunks of 64 KiB touched within 14 s of processor time, in runs of chunks that
follow each other.  Images have a part of their chunks in common, as images of
one distribution do.
"""

import random
from typing import NamedTuple

from acstor_common import ids

CHUNKS = 976
THINK_S = 14.0
RUN = 6
"""Mean number of chunks in a row."""


class Read(NamedTuple):
    """One read of a guest: it thinks, then needs a chunk."""

    think_s: float
    cid: ids.Cid


def boot_trace(image: int, chunks: int, common: float, seed: int) -> list[Read]:
    """Return what a guest of an image reads while it boots.

    The same for every guest of the image; ``common`` of its chunks are in all images.

    >>> one, other = (boot_trace(image, 100, 0.3, seed=1) for image in (1, 2))
    >>> len({read.cid for read in one} & {read.cid for read in other})
    30
    """
    rng = random.Random(f"{seed}/{image}")
    shared = round(chunks * common)
    names = [f"common/{n}" if n < shared else f"{image}/{n}" for n in range(chunks)]
    rng.shuffle(names)
    think_s = [rng.expovariate(1.0) if rng.random() < 1 / RUN else 0.0 for _ in names]
    scale = THINK_S / (sum(think_s) or 1.0)
    return [
        Read(scale * think, ids.cid_of(name.encode()))
        for think, name in zip(think_s, names, strict=True)
    ]
