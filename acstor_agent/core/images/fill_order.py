# SPDX-License-Identifier: Apache-2.0
"""The order in which a background fill fetches the missing chunks of an image.

File systems store what belongs together side by side, and programs read it in pieces. So the chunks
after those that guests waited for come first, and save the guests round trips.
"""

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence

FOLLOWING = 64  # chunks: 4 MiB; with more, a guest that compiles waits no less
WAITS = 4  # of an image that count: more save nothing


def order_chunks(missing: Collection[int], waited_for: Sequence[int]) -> Iterator[int]:
    """Yield missing chunk numbers, each once: those after the latest waits first, then the rest.

    >>> list(order_chunks(dict.fromkeys([9, 1, 2, 8]), waited_for=[0, 7]))
    [8, 9, 1, 2]

    :param missing: in the order of the rest; it finds a number quickly, as a dict does
    :param waited_for: numbers that guests waited for, oldest first
    """
    taken: set[int] = set()
    for number in reversed(waited_for):
        for following in range(number + 1, number + 1 + FOLLOWING):
            if following in missing and following not in taken:
                taken.add(following)
                yield following
    for number in missing:
        if number not in taken:
            yield number
