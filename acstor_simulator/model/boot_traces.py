# SPDX-License-Identifier: Apache-2.0
"""Boot traces: the reads of a guest while it boots, and its thinking time between.

The default is synthetic, modelled on a Debian guest of 1 GiB under Nova: 976 chunks of 64 KiB, read
in runs within 14 s of processor time.  Images share a part of their chunks.  Of a prepared image,
guests read compressed frames in the order of the boot, and the rest is fetched later.
"""

import random
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from acstor_agent.engine import chunk_ref
from acstor_common.formats import boot_image
from acstor_common.model import ids

CHUNK_BYTES = 64 * 1024
CHUNKS = 976
THINK_S = 14.0
RUN = 6  # mean length of a run of consecutive chunks
FRAME_CHUNKS = boot_image.FRAME_BYTES // CHUNK_BYTES
PACKED = 0.57  # ratio of a boot image to the boot's data (33.0 of 58 MB, Debian: benchmark P12)
MAP_BYTES = 40  # chunk map for each chunk of the image (2.3 MB for 3.5 GiB: benchmark P12)
REST_PIECES = 1000  # limit of pieces in which the rest is fetched; none is smaller than a frame
_FRAMES_AT, _REST_AT = 1 << 40, 1 << 41  # offsets of frames and pieces, beyond all chunks


class Read(NamedTuple):
    """One read of a guest: thinking time, then a chunk."""

    think_s: float
    chunk: chunk_ref.ChunkRef


class Sizes(NamedTuple):
    """Sizes of an image in bytes: as stored, and unpacked without holes."""

    stored: int
    data: int

    @property
    def map_bytes(self) -> int:
        """Return the size of the chunk map, which a host reads before guests boot."""
        return self.data // CHUNK_BYTES * MAP_BYTES


DEBIAN = Sizes(stored=89_000_000, data=286_000_000)  # the demo's image


class TracedImage(NamedTuple):
    """An image and the reads of a boot; ``rest`` is fetched after the boot."""

    image_id: ids.ImageId
    reads: list[Read]
    rest: Sequence[chunk_ref.ChunkRef] = ()

    @property
    def chunks(self) -> list[chunk_ref.ChunkRef]:
        """Return the chunks that a boot reads, in order."""
        return [read.chunk for read in self.reads]


def prepare(image: TracedImage, number: int, sizes: Sizes) -> TracedImage:
    """Return an image with a boot image, and with the rest that is fetched later.

    >>> image = prepare(make_traced_image(0, 100, 0.0, 1), 0, Sizes(100_000_000, 250_000_000))
    >>> len(image.reads), sum(piece.length for piece in image.rest) + 100 * CHUNK_BYTES
    (25, 250000000)
    """
    count = len(image.reads)
    reads = []
    for at, first in enumerate(range(0, count, FRAME_CHUNKS)):
        taken = image.reads[first : first + FRAME_CHUNKS]
        length = round(PACKED * CHUNK_BYTES * len(taken))
        frame = _want(image.image_id, f"{number}/frame/{at}", _FRAMES_AT + at, length)
        reads.append(Read(sum(read.think_s for read in taken), frame))
    left = max(0, sizes.data - count * CHUNK_BYTES)
    piece_bytes = max(boot_image.FRAME_BYTES, -(-left // REST_PIECES))
    rest = [
        _want(
            image.image_id,
            f"{number}/rest/{at}",
            _REST_AT + at * piece_bytes,
            min(piece_bytes, left - at * piece_bytes),
        )
        for at in range(-(-left // piece_bytes))
    ]
    return TracedImage(image.image_id, reads, rest)


def make_traced_image(
    image: int, chunks: int, common: float, seed: int, think_s: float = THINK_S
) -> TracedImage:
    """Return an image by number; a share ``common`` of its chunks is in all images.

    >>> one, other = (make_traced_image(image, 100, 0.3, seed=1) for image in (1, 2))
    >>> len({chunk.cid for chunk in one.chunks} & {chunk.cid for chunk in other.chunks})
    30
    """
    rng = random.Random(f"{seed}/{image}")
    shared = round(chunks * common)
    names = [f"common/{n}" if n < shared else f"{image}/{n}" for n in range(chunks)]
    rng.shuffle(names)
    thoughts_s = [rng.expovariate(1.0) if rng.random() < 1 / RUN else 0.0 for _ in names]
    scale = think_s / (sum(thoughts_s) or 1.0)
    image_id = ids.ImageId(str(uuid.UUID(int=image + 1)))
    reads = [
        Read(scale * thought_s, _want(image_id, name, number * CHUNK_BYTES, CHUNK_BYTES))
        for number, (thought_s, name) in enumerate(zip(thoughts_s, names, strict=True))
    ]
    return TracedImage(image_id, reads)


def _want(image_id: ids.ImageId, name: str, offset: int, length: int) -> chunk_ref.ChunkRef:
    cid = ids.cid_of(name.encode())
    return chunk_ref.ChunkRef(cid, ids.oid_of(cid), image_id, offset, length)
