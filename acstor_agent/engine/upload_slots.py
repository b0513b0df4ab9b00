# SPDX-License-Identifier: Apache-2.0
"""Number of answers that this host sends at a time.

Few on a link with a queue, where nothing urgent can overtake bytes in the queues of kernel and
network. Many where answers arrive at once, since tracking slots then costs more than it gains.
"""

FEW = 3
"""Slots after an answer met a queue: enough that a busy receiver does not idle this host's link."""
MANY = 64
LATE_S = 0.02
"""An answer that takes longer has met a queue."""
QUICK_S, QUICK_ONES = 0.005, 8
"""So many answers in a row within this time have met no queue."""


class UploadSlots:
    """Adapts the number of upload slots to the latency of answers.

    >>> places = UploadSlots()
    >>> places.count
    64
    >>> places.answer_delivered(took_s=0.3)
    >>> places.count
    3
    >>> for _ in range(QUICK_ONES):
    ...     places.answer_delivered(took_s=0.001)
    >>> places.count
    64
    """

    def __init__(self, count: int = MANY) -> None:
        self.count = count
        self._quick_ones = 0

    def under_way(self, age_s: float) -> None:
        """Record how many seconds ago an undelivered answer was sent."""
        if age_s > LATE_S:
            self.count, self._quick_ones = FEW, 0

    def answer_delivered(self, took_s: float) -> None:
        """Record how many seconds a delivered answer took."""
        self.under_way(took_s)
        self._quick_ones = self._quick_ones + 1 if took_s < QUICK_S else 0
        if self._quick_ones >= QUICK_ONES:
            self.count = MANY
