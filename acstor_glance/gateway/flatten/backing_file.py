# SPDX-License-Identifier: Apache-2.0
"""The file of a base image, read out of its store for one composition.

A store that is busy or away is asked again while there is time, since what was sent to
Glance already would be lost; what it refuses for good ends the composition.
"""

import collections
import http
import time
from collections.abc import Callable

from acstor_glance.gateway import byte_range
from acstor_glance.gateway import http_errors
from acstor_glance.gateway.flatten import watchdog

PAGE_BYTES = 1 << 16
PAGES = 128
"""What is kept of tables, which are looked at five times: 8 MiB, enough for 64 GiB of a disk."""
PAUSE_S = 1.0
"""Before a store is asked again."""
PASSING = frozenset(
    {
        http.HTTPStatus.BAD_GATEWAY,
        http.HTTPStatus.SERVICE_UNAVAILABLE,
        http.HTTPStatus.GATEWAY_TIMEOUT,
    }
)


class BackingFile:
    """What reads a base image: tables in pages, which are kept for a while, and parts.

    :param name: for words
    :param read: reads a range from the stores
    """

    def __init__(
        self,
        name: str,
        size_bytes: int,
        read: Callable[[byte_range.ByteRange], bytes],
        watched: watchdog.Watchdog,
    ) -> None:
        self.name, self.size_bytes = name, size_bytes
        self._read, self._watch = read, watched
        self._pages: collections.OrderedDict[int, bytes] = collections.OrderedDict()
        self.read_bytes = 0

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fill ``view`` from ``offset`` on, which lies in the file; for tables, by one thread.

        :raises http_errors.FlattenAborted: the store does not give it
        """
        done = 0
        while done < len(view):
            number, skip = divmod(offset + done, PAGE_BYTES)
            part = memoryview(self._page(number))[skip : skip + len(view) - done]
            view[done : done + len(part)] = part
            done += len(part)

    def read_part(self, offset: int, length: int) -> bytes:
        """Return bytes of the file; may be called by several threads.

        :raises http_errors.FlattenAborted: the store does not give them
        :raises http_errors.HttpError: the composition has been ended
        """
        while True:
            try:
                data = self._read(byte_range.ByteRange(offset, length))
            except http_errors.HttpError as error:
                if error.status not in PASSING or self._watch.left_s <= PAUSE_S:
                    words = f"the base: {error.message}"
                    raise http_errors.FlattenAborted(error.status, words, "base") from error
            else:
                self._watch.note_progress()
                self.read_bytes += length
                return data
            self._watch.check()
            time.sleep(PAUSE_S)

    def _page(self, number: int) -> bytes:
        page = self._pages.get(number)
        if page is None:
            start = number * PAGE_BYTES
            page = self.read_part(start, min(PAGE_BYTES, self.size_bytes - start))
            self._pages[number] = page
            if len(self._pages) > PAGES:
                self._pages.popitem(last=False)
        else:
            self._pages.move_to_end(number)
        return page
