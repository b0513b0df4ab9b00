# SPDX-License-Identifier: Apache-2.0
"""What an image has in common with its base, and where that lies in the files of both.

It is told by names of chunks and by layouts, which are hints here.  Who makes
anything of it compares the bytes.  No I/O.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from typing import NamedTuple

from acstor_common.formats import chunk_map
from acstor_common.formats import layout


class Range(NamedTuple):
    """Bytes that the stored files of an image and of its base are said to have both.

    :param offset: in the image's file
    :param base_offset: in the base's file
    """

    offset: int
    base_offset: int
    length: int


def own_bytes(image: chunk_map.ChunkMap, base: chunk_map.ChunkMap) -> int:
    """Return how many bytes a guest reads of an image that its base has not at the same place.

    Counted in chunks; zeros are nobody's.
    """
    cut, own = image.geometry, 0
    for chunk_no in range(len(image)):
        if not image.is_zero(chunk_no) and not _is_common(image, base, chunk_no):
            own += cut.chunk_length(chunk_no)
    return own


def find_ranges(
    image: chunk_map.ChunkMap, base: chunk_map.ChunkMap, block_bytes: int
) -> Iterator[Range]:
    """Yield what both files have, in whole blocks, in the order of the disk.

    What either of them has compressed is left out, and what does not begin at the same place of a
    block in both.

    :param block_bytes: of the file system that both are in
    """
    for run in _joined(_ranges(image, base)):
        before = -run.offset % block_bytes
        length = (run.length - before) // block_bytes * block_bytes
        if length > 0 and (run.offset - run.base_offset) % block_bytes == 0:
            yield Range(run.offset + before, run.base_offset + before, length)


def _is_common(image: chunk_map.ChunkMap, base: chunk_map.ChunkMap, chunk_no: int) -> bool:
    is_cut_alike = image.geometry.chunk_bytes == base.geometry.chunk_bytes
    return is_cut_alike and chunk_no < len(base) and image.cid_of(chunk_no) == base.cid_of(chunk_no)


def _ranges(image: chunk_map.ChunkMap, base: chunk_map.ChunkMap) -> Iterator[Range]:
    cut = image.geometry
    for chunk_no in range(len(image)):
        if not _is_common(image, base, chunk_no):
            continue
        start = chunk_no * cut.chunk_bytes
        for ours in _plain(image, start, start + cut.chunk_length(chunk_no)):
            for theirs in _plain(base, ours.at, ours.at + ours.length):
                yield Range(ours.offset + theirs.at - ours.at, theirs.offset, theirs.length)


def _plain(of: chunk_map.ChunkMap, start: int, stop: int) -> Iterator[layout.Extent]:
    """Yield where an image has bytes from ``start`` to ``stop``, without those compressed."""
    for extent in of.layout.find(start, min(stop, of.geometry.size_bytes)):
        if extent.codec is layout.Codec.STORED:
            at = max(extent.at, start)
            length = min(extent.at + extent.length, stop) - at
            offset = extent.offset + at - extent.at
            yield layout.Extent(at, length, extent.codec, offset, length)


def _joined(ranges: Iterable[Range]) -> Iterator[Range]:
    """Yield ranges, those that follow each other in both files joined."""
    run: Range | None = None
    for one in ranges:
        if run and (run.offset + run.length, run.base_offset + run.length) == one[:2]:
            run = run._replace(length=run.length + one.length)
            continue
        if run:
            yield run
        run = one
    if run:
        yield run
