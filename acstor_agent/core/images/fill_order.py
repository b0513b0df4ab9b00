# SPDX-License-Identifier: Apache-2.0
"""The order in which a background fill fetches the missing chunks of an image.

File systems store what belongs together side by side, and programs read it in pieces, forwards and
backwards. So the chunks near those that guests waited for come first, and save the guests round
trips.
"""

import array
import collections
from collections.abc import Iterator
from collections.abc import Sequence

from acstor_common.model import geometry

NEAR_BYTES = 4 * geometry.MIB  # on each side; with more, a guest that compiles waits no less
WAITS = 4  # of an image that count: more save nothing
_BLOCK = 64  # chunks whose states are in one number


class MissingChunks:
    """Missing chunks of an image; the work for the next ones does not grow with those removed.

    >>> missing = MissingChunks()
    >>> for number in (9, 1, 2, 8):
    ...     missing.append(number)
    >>> missing.remove(1)
    >>> missing.put_back(1)
    >>> list(missing.in_order(waited_for=[0, 7]))
    [8, 9, 2, 1]
    """

    def __init__(self, chunk_bytes: int = geometry.DEFAULT_CHUNK_BYTES) -> None:
        self._near = max(1, NEAR_BYTES // chunk_bytes)
        self._order = array.array("I")
        self._start = 0  # place in the order before which all are removed
        self._skips: dict[int, int] = {}  # from the first of removed places to the one after them
        self._left: dict[int, int] = {}  # bits of those in the order, by block
        self._count = 0
        self._failed: collections.OrderedDict[int, None] = collections.OrderedDict()

    def __len__(self) -> int:
        return self._count + len(self._failed)

    def append(self, number: int) -> None:
        """Add a chunk after the others."""
        self._order.append(number)
        block, at = divmod(number, _BLOCK)
        self._left[block] = self._left.get(block, 0) | 1 << at
        self._count += 1

    def remove(self, number: int) -> None:
        """Remove a chunk, to fetch it."""
        if not self._is_left(number):
            del self._failed[number]
            return
        block, at = divmod(number, _BLOCK)
        self._left[block] ^= 1 << at
        if not self._left[block]:
            del self._left[block]
        self._count -= 1

    def put_back(self, number: int) -> None:
        """Add a chunk whose fetch failed: after all others, also after a guest's wait."""
        self._failed[number] = None

    def has_near(self, waited_for: Sequence[int]) -> bool:
        """Return whether a chunk is near one of those that guests waited for."""
        return any(map(self._left_near, waited_for))

    def near(self, waited_for: Sequence[int]) -> Iterator[int]:
        """Yield the chunks near the latest waits, the nearest of each first."""
        found = set()
        for number in reversed(waited_for):
            left = self._left_near(number)
            for distance in range(1, self._near + 1 if left else 0):
                for near in (number + distance, number - distance):
                    if left >> near - number + self._near & 1 and near not in found:
                        found.add(near)
                        yield near

    def in_order(self, waited_for: Sequence[int]) -> Iterator[int]:
        """Yield all chunks: those near the latest waits, then the rest, at last those that failed.

        :param waited_for: numbers that guests waited for, oldest first
        """
        near = set()
        for number in self.near(waited_for):
            near.add(number)
            yield number
        place = self._next_left(self._start)
        self._skips.pop(self._start, None)
        self._start = place
        while place < len(self._order):
            number = self._order[place]
            if number not in near:
                yield number
            place = self._next_left(place + 1)
        yield from self._failed

    def _left_near(self, number: int) -> int:
        """Return the bits of the chunks near one, from the first of them on."""
        block, at = divmod(number - self._near, _BLOCK)
        width, bits = 2 * self._near + 1, 0
        for index in range((at + width - 1) // _BLOCK + 1):
            bits |= self._left.get(block + index, 0) << index * _BLOCK
        return bits >> at & (1 << width) - 1 & ~(1 << self._near)

    def _next_left(self, place: int) -> int:
        """Return the next place in the order whose chunk is left."""
        first = place
        while place < len(self._order) and not self._is_left(self._order[place]):
            place = self._skips.get(place, place + 1)
        if place > first + 1:
            self._skips[first] = place
        return place

    def _is_left(self, number: int) -> bool:
        block, at = divmod(number, _BLOCK)
        return bool(self._left.get(block, 0) >> at & 1)
