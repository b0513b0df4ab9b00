# SPDX-License-Identifier: Apache-2.0
"""How many answers may be on their way from this host at a time.

Few where a link has a queue: nothing more urgent can overtake bytes in the queues of the kernel and
the network.  Many where answers arrive at once: tracking places then costs more than it gains.
"""

FEW = 3
"""Where an answer met a queue: a receiver whose link is busy must not idle this host's."""
MANY = 64
LATE_S = 0.02
"""An answer that is under way for so long has met a queue."""
QUICK_S, QUICK_ONES = 0.005, 8
"""So many answers in a row that arrived within this time have met none."""


class UploadSlots:
    """Counts the places for answers by what the answers met.

    :param count: of places while nothing has arrived

    >>> places = UploadSlots()
    >>> places.count
    64
    >>> places.arrived(took_s=0.3)
    >>> places.count
    3
    >>> for _ in range(QUICK_ONES):
    ...     places.arrived(took_s=0.001)
    >>> places.count
    64
    """

    def __init__(self, count: int = MANY) -> None:
        self.count = count
        self._quick_ones = 0

    def under_way(self, age_s: float) -> None:
        """Note for how long an answer has been under way.

        :param age_s: in seconds since it was posted
        """
        if age_s > LATE_S:
            self.count, self._quick_ones = FEW, 0

    def answer_delivered(self, took_s: float) -> None:
        """Note that an answer is no longer under way, and how long it was, in seconds."""
        self.under_way(took_s)
        self._quick_ones = self._quick_ones + 1 if took_s < QUICK_S else 0
        if self._quick_ones >= QUICK_ONES:
            self.count = MANY
