# SPDX-License-Identifier: Apache-2.0
"""What a compute host's kernel reads of a mirror for a guest: a model of its page cache.

QEMU reads the mirror through the page cache, and there the kernel reads ahead of what looks
sequential, past what the guest wants.  The builder's guest reads by NBD, where nobody does so.
Without this model these pages, a twentieth of what a boot reads of a mirror, were in no boot image
that was built, while recordings of boots have them.

The model is Linux's (``mm/readahead.c``) for one open file: a read that misses and goes on where
the last one ended, or on many pages that are here, begins a window; a read that comes to the marked
page of a window begins the next one, up to twice as wide.

>>> cache = PageCacheModel(size_bytes=1 << 20)
>>> cache.read(65536, 4096)  # by itself
[(65536, 4096)]
>>> cache.read(69632, 4096)  # where it ended: four pages
[(69632, 16384)]
>>> cache.read(69632, 4096)
[]
"""

from acstor_common.model import geometry

PAGE_BYTES = 4096
WINDOW_PAGES = 128 * geometry.KIB // PAGE_BYTES
"""The widest window: what Linux gives a FUSE file system."""

Extent = tuple[int, int]
"""Offset and length, in bytes."""


class PageCacheModel:
    """The page cache of one image that one guest reads; nothing leaves it.

    :param size_bytes: the image's
    """

    def __init__(self, size_bytes: int) -> None:
        self._end = -(-size_bytes // PAGE_BYTES)
        self._pages: set[int] = set()
        self._marks: set[int] = set()
        self._start, self._size, self._mark = 0, 0, -1
        self._last = -2

    def read(self, offset: int, length: int) -> list[Extent]:
        """Return what the kernel asks the mirror for because of a guest's read, in order."""
        index, stop = offset // PAGE_BYTES, min(-(-(offset + length) // PAGE_BYTES), self._end)
        asked: list[Extent] = []
        for page in range(index, stop):
            if page in self._marks:
                self._marks.discard(page)
                self._go_on(page, stop - page, asked)
            elif page not in self._pages:
                self._miss(page, stop - page, asked)
        self._last = max(stop - 1, index)
        return asked

    def _miss(self, page: int, wanted: int, asked: list[Extent]) -> None:
        if page == 0 or wanted > WINDOW_PAGES or 0 <= page - self._last <= 1:
            self._start, self._size = page, max(_first_window(wanted), min(wanted, WINDOW_PAGES))
            ahead = self._size - wanted
            self._fetch(ahead if ahead > 0 else self._size // 2, asked)
            return
        before = self._present_before(page)
        if before <= wanted:
            self._add(page, page + wanted, asked)
            return
        self._start, self._size = page, min(before + wanted, WINDOW_PAGES)
        self._fetch(1, asked)

    def _go_on(self, page: int, wanted: int, asked: list[Extent]) -> None:
        if page == self._mark:
            self._start += self._size
            self._size = max(self._size, _next_window(self._size))
        else:  # of a former window: others have read since
            end = page + 1
            while end in self._pages:
                end += 1
            if end - page > WINDOW_PAGES:
                return
            self._start, self._size = end, _next_window(end - page + wanted)
        self._fetch(self._size, asked)

    def _present_before(self, page: int) -> int:
        first = page
        while first > 0 and first - 1 in self._pages and page - first < WINDOW_PAGES:
            first -= 1
        return page - first

    def _fetch(self, ahead: int, asked: list[Extent]) -> None:
        """Bring the window; whoever comes to its last ``ahead`` pages makes the next one come."""
        end = self._start + self._size
        self._mark = end - ahead
        if self._mark < self._end and self._mark not in self._pages:
            self._marks.add(self._mark)
        self._add(self._start, end, asked)

    def _add(self, start: int, end: int, asked: list[Extent]) -> None:
        """Read what is not here of some pages, up to the image's end."""
        first = None
        for page in range(start, min(end, self._end) + 1):
            is_missing = page < min(end, self._end) and page not in self._pages
            if is_missing:
                self._pages.add(page)
                first = page if first is None else first
            elif first is not None:
                asked.append((first * PAGE_BYTES, (page - first) * PAGE_BYTES))
                first = None


def _first_window(wanted: int) -> int:
    """Return how many pages come when a sequence of reads begins with one of so many."""
    size = 1 << (wanted - 1).bit_length()
    if size <= WINDOW_PAGES // 32:
        return size * 4
    return size * 2 if size <= WINDOW_PAGES // 4 else WINDOW_PAGES


def _next_window(size: int) -> int:
    if size < WINDOW_PAGES // 16:
        return size * 4
    return size * 2 if size <= WINDOW_PAGES // 2 else WINDOW_PAGES
