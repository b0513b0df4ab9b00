# SPDX-License-Identifier: Apache-2.0
"""Model of a compute host's page cache: a mirror's reads for a guest's.

On a host, QEMU reads the mirror through the page cache; the builder's guest reads by NBD, without
readahead. The model adds these pages, a twentieth of a boot's reads, by Linux's ``mm/readahead.c``
for one open file: a miss that continues the last read, or follows many cached pages, starts a
window; a read of a window's marked page starts the next one, up to twice as wide.

>>> cache = PageCacheModel(size_bytes=1 << 20)
>>> cache.read(65536, 4096)  # not sequential
[(65536, 4096)]
>>> cache.read(69632, 4096)  # sequential: four pages
[(69632, 16384)]
>>> cache.read(69632, 4096)
[]
"""

from acstor_common.model import geometry

PAGE_BYTES = 4096
WINDOW_PAGES = 128 * geometry.KIB // PAGE_BYTES  # the widest window: Linux's default for FUSE

Extent = tuple[int, int]  # offset and length, in bytes


class PageCacheModel:
    """Page cache of one image for one guest, without eviction."""

    def __init__(self, size_bytes: int) -> None:
        self._end = -(-size_bytes // PAGE_BYTES)
        self._pages: set[int] = set()
        self._marks: set[int] = set()
        self._start, self._size, self._mark = 0, 0, -1
        self._last = -2

    def read(self, offset: int, length: int) -> list[Extent]:
        """Return the reads that the kernel sends to the mirror, in order."""
        index, stop = offset // PAGE_BYTES, min(-(-(offset + length) // PAGE_BYTES), self._end)
        reads: list[Extent] = []
        for page in range(index, stop):
            if page in self._marks:
                self._marks.discard(page)
                self._go_on(page, stop - page, reads)
            elif page not in self._pages:
                self._miss(page, stop - page, reads)
        self._last = max(stop - 1, index)
        return reads

    def _miss(self, page: int, wanted: int, reads: list[Extent]) -> None:
        if page == 0 or wanted > WINDOW_PAGES or 0 <= page - self._last <= 1:
            self._start, self._size = page, max(_first_window(wanted), min(wanted, WINDOW_PAGES))
            ahead = self._size - wanted
            self._fetch(ahead if ahead > 0 else self._size // 2, reads)
            return
        before = self._present_before(page)
        if before <= wanted:
            self._add(page, page + wanted, reads)
            return
        self._start, self._size = page, min(before + wanted, WINDOW_PAGES)
        self._fetch(1, reads)

    def _go_on(self, page: int, wanted: int, reads: list[Extent]) -> None:
        if page == self._mark:
            self._start += self._size
            self._size = max(self._size, _next_window(self._size))
        else:  # the page belongs to an earlier window
            end = page + 1
            while end in self._pages:
                end += 1
            if end - page > WINDOW_PAGES:
                return
            self._start, self._size = end, _next_window(end - page + wanted)
        self._fetch(self._size, reads)

    def _present_before(self, page: int) -> int:
        first = page
        while first > 0 and first - 1 in self._pages and page - first < WINDOW_PAGES:
            first -= 1
        return page - first

    def _fetch(self, ahead: int, reads: list[Extent]) -> None:
        """Read the window, and mark the page from which ``ahead`` pages remain."""
        end = self._start + self._size
        self._mark = end - ahead
        if self._mark < self._end and self._mark not in self._pages:
            self._marks.add(self._mark)
        self._add(self._start, end, reads)

    def _add(self, start: int, end: int, reads: list[Extent]) -> None:
        first = None
        for page in range(start, min(end, self._end) + 1):
            is_missing = page < min(end, self._end) and page not in self._pages
            if is_missing:
                self._pages.add(page)
                first = page if first is None else first
            elif first is not None:
                reads.append((first * PAGE_BYTES, (page - first) * PAGE_BYTES))
                first = None


def _first_window(wanted: int) -> int:
    """Return the first window's pages for a sequential read of ``wanted`` pages."""
    size = 1 << (wanted - 1).bit_length()
    if size <= WINDOW_PAGES // 32:
        return size * 4
    return size * 2 if size <= WINDOW_PAGES // 4 else WINDOW_PAGES


def _next_window(size: int) -> int:
    if size < WINDOW_PAGES // 16:
        return size * 4
    return size * 2 if size <= WINDOW_PAGES // 2 else WINDOW_PAGES
