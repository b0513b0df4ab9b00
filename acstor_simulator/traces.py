# SPDX-License-Identifier: Apache-2.0
"""What a guest reads while it boots, and how long it thinks in between.

A trace is a list of reads: seconds of thought, then a chunk number.  The default
is made up to the measure of one real boot (a Debian guest of 1 GiB under Nova):
976 chunks of 64 KiB touched within 14 s of processor time, in runs of chunks that
follow each other.  Images have a part of their chunks in common, as images of
one distribution do.
"""

import random
import uuid
from typing import NamedTuple

from acstor_agent.core.transfers import want
from acstor_common import ids

CHUNK_BYTES = 64 * 1024
CHUNKS = 976
THINK_S = 14.0
RUN = 6
"""Mean number of chunks in a row."""


class Read(NamedTuple):
    """One read of a guest: it thinks, then needs a chunk."""

    think_s: float
    chunk: want.Want


class Image(NamedTuple):
    """An image, and what each of its guests reads while it boots."""

    image_id: ids.ImageId
    reads: list[Read]

    @property
    def chunks(self) -> list[want.Want]:
        """What is read, in its order."""
        return [read.chunk for read in self.reads]


def boot_image(image: int, chunks: int, common: float, seed: int) -> Image:
    """Return an image by its number; ``common`` of its chunks are in all images.

    >>> one, other = (boot_image(image, 100, 0.3, seed=1) for image in (1, 2))
    >>> len({chunk.cid for chunk in one.chunks} & {chunk.cid for chunk in other.chunks})
    30
    """
    rng = random.Random(f"{seed}/{image}")
    shared = round(chunks * common)
    names = [f"common/{n}" if n < shared else f"{image}/{n}" for n in range(chunks)]
    rng.shuffle(names)
    think_s = [rng.expovariate(1.0) if rng.random() < 1 / RUN else 0.0 for _ in names]
    scale = THINK_S / (sum(think_s) or 1.0)
    image_id = ids.ImageId(str(uuid.UUID(int=image + 1)))
    reads = [
        Read(scale * think, _chunk(image_id, number, name))
        for number, (think, name) in enumerate(zip(think_s, names, strict=True))
    ]
    return Image(image_id, reads)


def _chunk(image_id: ids.ImageId, number: int, name: str) -> want.Want:
    cid = ids.cid_of(name.encode())
    return want.Want(cid, ids.oid_of(cid), image_id, number * CHUNK_BYTES, CHUNK_BYTES)
