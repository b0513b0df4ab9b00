# SPDX-License-Identifier: Apache-2.0
"""Boot traces: the chunks that a boot reads, distinct, in order of first touch."""

import collections
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

from acstor_common.formats import boot_image
from acstor_common.model import geometry
from acstor_common.model import ids

MAX_PROFILES = 4  # profiles of an image whose boots are recorded
_MOST = 0.51  # share of more than half, of up to MAX_PROFILES


class Window(NamedTuple):
    """End of a recording; the first condition that holds ends it."""

    longest_s: float  # time since the first read
    idle_s: float  # time without a first read of a chunk
    limit_chunks: int = boot_image.MAX_CHUNKS


class Recorder:
    """Records one boot.

    >>> recorder = Recorder(geometry.Geometry(1 << 20, 65536), Window(60.0, 10.0))
    >>> recorder.record_read(70000, 4096, now_s=0.0)
    >>> recorder.record_read(0, 70000, now_s=1.0)
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
        """The chunks read so far, in order of first touch."""
        return tuple(self._seen)

    @property
    def chunk_count(self) -> int:
        """Number of chunks read so far."""
        return len(self._seen)

    @property
    def is_full(self) -> bool:
        """Whether the limit is reached."""
        return len(self._seen) >= self._window.limit_chunks

    def record_read(self, offset: int, length: int, now_s: float) -> None:
        """Record a read; ignore chunks past the end of the image or over the limit."""
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
        """Return whether the recording has ended; it never has before the first read."""
        if self._first_s is None:
            return False
        is_idle = now_s - self._last_new_s >= self._window.idle_s
        return is_idle or self.is_full or now_s - self._first_s >= self._window.longest_s


def why_invalid(trace: Sequence[int], chunk_count: int) -> str:
    """Return why ``trace`` is invalid for an image; "" if it is valid.

    >>> why_invalid([3, 1, 3], 4)
    'a chunk is in it twice'
    """
    if not trace:
        return "it is empty"
    if len(trace) > min(chunk_count, boot_image.MAX_CHUNKS):
        return f"{len(trace)} chunks are too many"
    if min(trace) < 0 or max(trace) >= chunk_count:
        return "it has chunks that the image lacks"
    if len(set(trace)) != len(trace):
        return "a chunk is in it twice"
    return ""


def merge(
    traces: Sequence[Sequence[int]], share: float, limit_chunks: int = boot_image.MAX_CHUNKS
) -> tuple[int, ...]:
    """Merge traces of several boots of one image, ordered by mean position.

    :param share: least share of the boots that read a chunk; 0: any boot
    :param limit_chunks: the most frequent chunks are kept

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


def merge_profiles(
    boots: Sequence[tuple[ids.ProfileKey, Sequence[int]]],
    share: float,
    limit_chunks: int = boot_image.MAX_CHUNKS,
    least_boots: int = 2,
    before: boot_image.ProfiledTrace | None = None,
) -> boot_image.ProfiledTrace:
    """Merge traces of several boots of one image, those of each profile by themselves.

    All boots have what boots without a profile read; without such, what most profiles have, if
    there are two. So an unusual boot or profile changes nothing for others.

    :param limit_chunks: for all boots, and the same for all profiles together
    :param least_boots: profiles with fewer boots count for nothing: one boot may be unusual
    :param before: the former trace, of which parts without new boots stay

    >>> db, web = ids.profile_key_of("db"), ids.profile_key_of("web")
    >>> boots = [(db, [1, 2, 7])] * 8 + [(web, [1, 2, 7, 8])] * 8 + [(ids.NO_PROFILE, [1, 9])] * 2
    >>> merged = merge_profiles(boots, share=0.5)
    >>> merged.common, merged.of_profiles[db], merged.of_profiles[web]
    ((1, 9), (2, 7), (2, 7, 8))
    """
    groups = collections.defaultdict(list)
    for profile, trace in boots:
        groups[profile].append(trace)
    enough = {key: traces for key, traces in groups.items() if len(traces) >= least_boots}
    merged = {key: merge(traces, share, limit_chunks) for key, traces in enough.items()}
    without = merged.pop(ids.NO_PROFILE, None)
    if without is not None:
        common = without
    elif before is not None and len(merged) < 2:
        common = before.common
    else:
        common = merge([merged[key] for key in sorted(merged)], _MOST, limit_chunks)
    parts = merged
    if before is not None:
        parts = {k: (*before.common, *part) for k, part in before.of_profiles.items()} | merged
    wanted = sorted(parts, key=lambda key: (key not in merged, key))[:MAX_PROFILES]
    of_profiles = _beside(common, {key: parts[key] for key in wanted}, limit_chunks)
    return boot_image.ProfiledTrace(common, of_profiles)


def _beside(
    common: Sequence[int], parts: Mapping[ids.ProfileKey, Sequence[int]], limit_chunks: int
) -> dict[ids.ProfileKey, tuple[int, ...]]:
    """Return what parts have beside ``common``, all together within the limit."""
    known, found = set(common), {}
    for key, part in parts.items():
        if own := tuple(chunk_no for chunk_no in part if chunk_no not in known)[:limit_chunks]:
            found[key] = own
        limit_chunks -= len(own)
    return found


def _mean(numbers: Iterable[float]) -> float:
    found = list(numbers)
    return sum(found) / len(found)
