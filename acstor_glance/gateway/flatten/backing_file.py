# SPDX-License-Identifier: Apache-2.0
"""Reads the file of a backing image from its store, for one job; retries failures."""

import http
import time
from collections.abc import Callable

from acstor_common.util import lru_table
from acstor_glance.gateway import byte_range
from acstor_glance.gateway import http_errors
from acstor_glance.gateway.flatten import watchdog

PAGE_BYTES = 1 << 16
CACHE_PAGES = 128  # 8 MiB, enough for the tables of a 64 GiB disk, which are read five times
RETRY_S = 1.0
TEMPORARY = frozenset(
    {
        http.HTTPStatus.BAD_GATEWAY,
        http.HTTPStatus.SERVICE_UNAVAILABLE,
        http.HTTPStatus.GATEWAY_TIMEOUT,
    }
)


class BackingFile:
    """Reader of a backing image, with a cache of its tables."""

    def __init__(
        self,
        name: str,
        size_bytes: int,
        read: Callable[[byte_range.ByteRange], bytes],
        watch: watchdog.Watchdog,
        *,
        pages: int = CACHE_PAGES,
        pause_s: float = RETRY_S,
    ) -> None:
        self._pause_s = pause_s
        self.name, self.size_bytes = name, size_bytes
        self._read, self._watch = read, watch
        self._pages: lru_table.LruTable[int, bytes] = lru_table.LruTable(pages)
        self.read_bytes = 0

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fill ``view`` from ``offset`` on; for tables, in one thread."""
        done = 0
        while done < len(view):
            number, skip = divmod(offset + done, PAGE_BYTES)
            part = memoryview(self._page(number))[skip : skip + len(view) - done]
            view[done : done + len(part)] = part
            done += len(part)

    def read_part(self, offset: int, length: int) -> bytes:
        """Return a part of the file; thread-safe; raises http_errors.HttpError."""
        while True:
            try:
                data = self._read(byte_range.ByteRange(offset, length))
            except http_errors.HttpError as error:
                if error.status not in TEMPORARY or self._watch.left_s <= self._pause_s:
                    words = f"the base: {error.message}"
                    raise http_errors.FlattenAborted(error.status, words, "base") from error
            else:
                self._watch.note_progress()
                self.read_bytes += length
                return data
            self._watch.raise_if_stopped()
            time.sleep(self._pause_s)

    def _page(self, number: int) -> bytes:
        page = self._pages.get_as_used(number)
        if page is None:
            start = number * PAGE_BYTES
            page = self.read_part(start, min(PAGE_BYTES, self.size_bytes - start))
            self._pages[number] = page
        return page
