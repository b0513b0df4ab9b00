# SPDX-License-Identifier: Apache-2.0
"""Seek time of a rotating disk: ``a + b * sqrt(distance)``.

Ruemmler and Wilkes, An Introduction to Disk Drive Modeling (IEEE Computer 27(3), 1994), let long
seeks grow linearly; the root alone stays within 20 % of that.
"""

import dataclasses

MEAN_ROOT = 8 / 15
"""Mean of sqrt(distance / size) over two places chosen at random: integral of 2 (1 - x) sqrt(x)."""


@dataclasses.dataclass(frozen=True)
class SeekCost:
    """The seek curve of one disk.

    >>> cost = SeekCost()
    >>> cost.seek_s(0), round(cost.seek_s(cost.size_bytes) * 1000, 1)  # from edge to edge
    (0.0, 15.1)
    """

    size_bytes: int = 10**12  # of the whole disk
    track_s: float = 0.001  # from one track to the next: Hitachi 7K320, table 7
    average_s: float = 0.0085  # between two places chosen at random: Hitachi 7K1000.C, table 9
    turn_s: float = 60 / 7200  # one turn of the platters

    def seek_s(self, distance: int) -> float:
        """Return how long the arm moves over ``distance`` bytes; 0 if it is 0."""
        if not distance:
            return 0.0
        root = (min(abs(distance), self.size_bytes) / self.size_bytes) ** 0.5
        return float(self.track_s + (self.average_s - self.track_s) / MEAN_ROOT * root)

    def positioning_s(self, distance: int) -> float:
        """Return the seek and the half turn that follows it on average."""
        return self.seek_s(distance) + self.turn_s / 2 if distance else 0.0
