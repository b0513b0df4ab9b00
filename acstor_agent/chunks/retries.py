# SPDX-License-Identifier: Apache-2.0
"""The pauses of those who wait for what nobody could give: for hours, if it must be.

The one rule: however many wait, what they ask for again and again costs this host, its peers and
the source no more than RETRIES_PER_S journeys.  When something comes after all, those who wait
longest are woken, a few for each, so that they become more as fast as answers come, and not all
at once.
"""

import collections

import trio

FIRST_S = 0.1
LONGEST_S = 2.0
"""The longest pause of one who waits alone, or with few."""
RETRIES_PER_S = 200
WOKEN = 8


def pause_s(tries: int, others: int) -> float:
    """Return how long to wait before the next try.

    :param tries: how often it was in vain already, after the first time
    :param others: how many wait like this

    >>> [pause_s(tries, 1) for tries in (0, 1, 4, 5, 5000)]
    [0.1, 0.2, 1.6, 2.0, 2.0]
    >>> pause_s(5, 3200)
    16.0
    """
    return float(max(min(FIRST_S * 2 ** min(tries, 16), LONGEST_S), others / RETRIES_PER_S))


class Retries:
    """Those who wait, the one that waits longest first."""

    def __init__(self) -> None:
        self._waiting: collections.OrderedDict[trio.Event, None] = collections.OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    async def pause(self, tries: int) -> None:
        """Wait until it is time to try again, or something has come for others."""
        woken = trio.Event()
        self._waiting[woken] = None
        try:
            with trio.move_on_after(pause_s(tries, len(self._waiting))):
                await woken.wait()
        finally:
            self._waiting.pop(woken, None)

    def came(self) -> None:
        """Note that something has come that could not be had before."""
        for _ in range(min(WOKEN, len(self._waiting))):
            self._waiting.popitem(last=False)[0].set()
