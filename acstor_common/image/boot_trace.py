# SPDX-License-Identifier: Apache-2.0
"""The boot trace: which chunks a boot reads, in the order of first touch, and when a boot is over.

The one rule: a trace has chunk numbers of one image, none twice, and never more
than its limit, whatever was read or sent.
"""

import collections
from collections.abc import Iterable
from collections.abc import Sequence
from typing import NamedTuple

from acstor_common.formats import boot_image
from acstor_common.model import geometry


class Window(NamedTuple):
    """How long a boot is recorded.

    :param longest_s: from the first read at most this long
    :param idle_s: until no chunk was read for the first time for this long
    :param limit_chunks: until this many chunks were read
    """

    longest_s: float
    idle_s: float
    limit_chunks: int = boot_image.MAX_CHUNKS


class Recorder:
    """Records one boot.

    >>> recorder = Recorder(geometry.Geometry(1 << 20, 65536), Window(60.0, 10.0))
    >>> recorder.read(70000, 4096, now_s=0.0)
    >>> recorder.read(0, 70000, now_s=1.0)
    >>> recorder.trace, recorder.is_over(10.9), recorder.is_over(11.0)
    ((1, 0), False, True)
    """

    def __init__(self, cut: geometry.Geometry, window: Window) -> None:
        self._cut = cut
        self._window = window
        self._seen: dict[int, None] = {}
        self._first_s: float | None = None
        self._last_new_s = 0.0

    @property
    def trace(self) -> tuple[int, ...]:
        """The chunks read so far, in the order of first touch."""
        return tuple(self._seen)

    @property
    def chunk_count(self) -> int:
        """How many chunks were read so far."""
        return len(self._seen)

    @property
    def is_full(self) -> bool:
        """Say whether the limit is reached."""
        return len(self._seen) >= self._window.limit_chunks

    def read(self, offset: int, length: int, now_s: float) -> None:
        """Note a read; what lies past the end of the image, or over the limit, is left out."""
        if self._first_s is None:
            self._first_s = self._last_new_s = now_s
        before, size = len(self._seen), self._cut.chunk_bytes
        stop = min(offset + length, self._cut.size_bytes)
        for chunk_no in range(offset // size, -(-stop // size)):
            if len(self._seen) >= self._window.limit_chunks:
                break
            self._seen[chunk_no] = None
        if len(self._seen) != before:
            self._last_new_s = now_s

    def is_over(self, now_s: float) -> bool:
        """Say whether the boot counts as over; it does not before the first read."""
        if self._first_s is None:
            return False
        is_idle = now_s - self._last_new_s >= self._window.idle_s
        return is_idle or self.is_full or now_s - self._first_s >= self._window.longest_s


def why_invalid(trace: Sequence[int], chunk_count: int) -> str:
    """Say why ``trace`` is no boot trace of an image with so many chunks; empty if it is one.

    >>> why_invalid([3, 1, 3], 4)
    'a chunk is in it twice'
    """
    if not trace:
        return "it is empty"
    if len(trace) > min(chunk_count, boot_image.MAX_CHUNKS):
        return f"{len(trace)} chunks are too many"
    if min(trace) < 0 or max(trace) >= chunk_count:
        return "it has chunks that the image has not"
    if len(set(trace)) != len(trace):
        return "a chunk is in it twice"
    return ""


def merge(
    traces: Sequence[Sequence[int]], share: float, limit_chunks: int = boot_image.MAX_CHUNKS
) -> tuple[int, ...]:
    """Return one trace of several boots of the same image.

    :param share: chunks that this share of the boots read; 0 takes every chunk of any boot
    :return: the chunks in the order of their mean place, those of the most boots first if the
        limit is reached

    >>> merge([[5, 1, 2], [5, 2, 9]], share=0.6)
    (5, 2)
    >>> merge([[5, 1, 2], [5, 2, 9]], share=0.0)
    (5, 1, 2, 9)
    """
    places: collections.defaultdict[int, list[float]] = collections.defaultdict(list)
    for trace in traces:
        for place, chunk_no in enumerate(trace):
            places[chunk_no].append(place / len(trace))
    needed = max(1.0, share * len(traces))
    kept = [chunk_no for chunk_no, found in places.items() if len(found) >= needed]
    kept.sort(key=lambda chunk_no: (-len(places[chunk_no]), _mean(places[chunk_no])))
    return tuple(sorted(kept[:limit_chunks], key=lambda chunk_no: _mean(places[chunk_no])))


def _mean(numbers: Iterable[float]) -> float:
    found = list(numbers)
    return sum(found) / len(found)
