# SPDX-License-Identifier: Apache-2.0
"""The order in which a background fill fetches the missing chunks of an image.

File systems store what belongs together side by side, and programs read it in pieces. So the chunks
after those that guests waited for come first, and save the guests round trips.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

FOLLOWING = 64  # chunks: 4 MiB; with more, a guest that compiles waits no less
WAITS = 4  # of an image that count: more save nothing


def order_chunks(missing: Mapping[int, bool], waited_for: Sequence[int]) -> Iterator[int]:
    """Yield missing chunk numbers, each once: those after the latest waits first, then the rest.

    >>> list(order_chunks({9: False, 1: True, 2: False, 8: False}, waited_for=[0, 7]))
    [8, 9, 2, 1]

    :param missing: whether the last fetch of each failed, which leaves it in the rest, in its order
    :param waited_for: numbers that guests waited for, oldest first
    """
    taken: set[int] = set()
    for number in reversed(waited_for):
        for following in range(number + 1, number + 1 + FOLLOWING):
            if missing.get(following) is False and following not in taken:
                taken.add(following)
                yield following
    for number in missing:
        if number not in taken:
            yield number
