# SPDX-License-Identifier: Apache-2.0
"""Finds the data that a file probably shares with its backing image, in time by what it stores."""

from collections.abc import Iterable
from collections.abc import Iterator
from typing import NamedTuple

from acstor_common.formats import chunk_map
from acstor_common.formats import layout


class Range(NamedTuple):
    """A range, by its offsets in two files, that both probably share."""

    offset: int
    base_offset: int
    length: int


def own_bytes(image: chunk_map.ChunkMap, base: chunk_map.ChunkMap) -> int:
    """Return the bytes of chunks, not zeros, that differ from the base's there."""
    cut, own = image.geometry, 0
    for chunk_no in image.iter_data():
        if not _is_common(image, base, chunk_no):
            own += cut.chunk_length(chunk_no)
    return own


def find_ranges(
    image: chunk_map.ChunkMap, base: chunk_map.ChunkMap, block_bytes: int
) -> Iterator[Range]:
    """Yield ranges of whole blocks that both files have uncompressed, in the order of the disk."""
    for run in _joined(_ranges(image, base)):
        before = -run.offset % block_bytes
        length = (run.length - before) // block_bytes * block_bytes
        if length > 0 and (run.offset - run.base_offset) % block_bytes == 0:
            yield Range(run.offset + before, run.base_offset + before, length)


def _is_common(image: chunk_map.ChunkMap, base: chunk_map.ChunkMap, chunk_no: int) -> bool:
    is_cut_alike = image.geometry.chunk_bytes == base.geometry.chunk_bytes
    return is_cut_alike and chunk_no < len(base) and image.cid_of(chunk_no) == base.cid_of(chunk_no)


def _ranges(image: chunk_map.ChunkMap, base: chunk_map.ChunkMap) -> Iterator[Range]:
    page_bytes, size_bytes = layout.page_bytes(image.geometry), image.geometry.size_bytes
    for page in range(0, size_bytes, page_bytes):
        for stored in _plain(image, page, min(page + page_bytes, size_bytes)):
            for ours in _by_chunk(stored, image.geometry.chunk_bytes):
                if _is_common(image, base, ours.at // image.geometry.chunk_bytes):
                    for theirs in _plain(base, ours.at, ours.at + ours.length):
                        offset = ours.offset + theirs.at - ours.at
                        yield Range(offset, theirs.offset, theirs.length)


def _by_chunk(extent: layout.Extent, chunk_bytes: int) -> Iterator[layout.Extent]:
    at, stop = extent.at, extent.at + extent.length
    while at < stop:
        length = min(chunk_bytes - at % chunk_bytes, stop - at)
        offset = extent.offset + at - extent.at
        yield extent._replace(at=at, length=length, offset=offset, stored_bytes=length)
        at += length


def _plain(of: chunk_map.ChunkMap, start: int, stop: int) -> Iterator[layout.Extent]:
    for extent in of.layout.find(start, min(stop, of.geometry.size_bytes)):
        if extent.codec is layout.Codec.STORED:
            at = max(extent.at, start)
            length = min(extent.at + extent.length, stop) - at
            offset = extent.offset + at - extent.at
            yield layout.Extent(at, length, extent.codec, offset, length)


def _joined(ranges: Iterable[Range]) -> Iterator[Range]:
    run: Range | None = None
    for common in ranges:
        if run and (run.offset + run.length, run.base_offset + run.length) == common[:2]:
            run = run._replace(length=run.length + common.length)
            continue
        if run:
            yield run
        run = common
    if run:
        yield run
