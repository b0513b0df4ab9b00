# SPDX-License-Identifier: Apache-2.0
"""Runs of chunk numbers to read for a checkpoint."""

import heapq
from collections.abc import Container
from collections.abc import Iterable
from collections.abc import Iterator
from typing import NamedTuple

from acstor_common.formats import checkpoint_manifest
from acstor_common.model import geometry
from acstor_common.model import ids


class ChunkRun(NamedTuple):
    """Chunks from ``first`` to ``stop``, exclusive."""

    first: int
    stop: int


def chunks_of(ranges: Iterable[tuple[int, int]], cut: geometry.Geometry) -> Iterator[ChunkRun]:
    """Yield the chunks that overlap ordered byte ranges (offset, length).

    >>> list(chunks_of([(0, 1), (65535, 2), (400000, 9)], geometry.Geometry(400001, 65536)))
    [ChunkRun(first=0, stop=2), ChunkRun(first=6, stop=7)]
    """
    return merge_runs(
        ChunkRun(at // cut.chunk_bytes, min(-(-(at + length) // cut.chunk_bytes), cut.chunk_count))
        for at, length in ranges
        if length and at < cut.size_bytes
    )


def merge_runs(*runs: Iterable[ChunkRun]) -> Iterator[ChunkRun]:
    """Yield the union of several ordered lists of runs.

    >>> list(merge_runs([ChunkRun(0, 2), ChunkRun(7, 8)], [ChunkRun(1, 3), ChunkRun(3, 4)]))
    [ChunkRun(first=0, stop=4), ChunkRun(first=7, stop=8)]
    """
    first, stop = 0, 0
    for run in heapq.merge(*runs):
        if run.first > stop:
            if stop > first:
                yield ChunkRun(first, stop)
            first = run.first
        stop = max(stop, run.stop)
    if stop > first:
        yield ChunkRun(first, stop)


def added_chunks(
    runs: Iterable[ChunkRun], before: Iterable[checkpoint_manifest.Entry]
) -> Iterator[ChunkRun]:
    """Yield the chunks of ``runs`` that the last manifest lacks.

    >>> named = [checkpoint_manifest.Entry(chunk_no, ids.ZERO_CID) for chunk_no in (1, 3)]
    >>> list(added_chunks([ChunkRun(0, 3), ChunkRun(3, 5)], named))
    [ChunkRun(first=0, stop=1), ChunkRun(first=2, stop=3), ChunkRun(first=4, stop=5)]
    """
    numbers = (entry.chunk_no for entry in before)
    known = next(numbers, None)
    for first, stop in runs:
        while known is not None and known < stop:
            if known >= first:
                if known > first:
                    yield ChunkRun(first, known)
                first = known + 1
            known = next(numbers, None)
        if first < stop:
            yield ChunkRun(first, stop)


def chunks_named(
    names: Container[ids.Cid], before: Iterable[checkpoint_manifest.Entry]
) -> Iterator[ChunkRun]:
    """Yield the chunks that have one of ``names`` in the last manifest."""
    return merge_runs(ChunkRun(no, no + 1) for no, cid in before if cid in names)


def resized_chunks(before: geometry.Geometry, now: geometry.Geometry) -> Iterator[ChunkRun]:
    """Yield the chunks whose length changes with the disk's size.

    >>> list(resized_chunks(geometry.Geometry(100000, 65536), geometry.Geometry(200000, 65536)))
    [ChunkRun(first=1, stop=2)]
    """
    last = min(before.chunk_count, now.chunk_count) - 1
    if last >= 0 and before.chunk_length(last) != now.chunk_length(last):
        yield ChunkRun(last, last + 1)
