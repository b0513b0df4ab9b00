# SPDX-License-Identifier: Apache-2.0
"""Detects the growth of a process's resource: pure functions of samples over time."""

import statistics
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

ALLOWED_GROWTH: Mapping[str, tuple[float, float]] = {
    "memory_mib": (0.10, 16.0),
    "descriptors": (0.10, 8.0),
    "threads": (0.10, 4.0),
}
"""Allowed rise of each resource's level: a share of it, plus an amount."""
QUARTERS = 4
LEAST_SAMPLES = 3 * QUARTERS


class Point(NamedTuple):
    """A sample: seconds since the start of the soak, and the value."""

    at_s: float
    value: float


class Trend(NamedTuple):
    """The change of a resource's level.

    :param before: median of the second quarter of the samples; the first one is the warm-up
    :param after: median of the last quarter
    :param per_hour: slope between these two quarters
    """

    before: float
    after: float
    per_hour: float

    def has_grown(self, resource: str) -> bool:
        """Return whether the level rose by more than :data:`ALLOWED_GROWTH`.

        >>> Trend(100.0, 125.0, 5.0).has_grown("memory_mib")
        False
        >>> Trend(100.0, 127.0, 5.0).has_grown("memory_mib")
        True
        """
        share, amount = ALLOWED_GROWTH[resource]
        return self.after > self.before * (1 + share) + amount


def trend_of(points: Sequence[Point]) -> Trend | None:
    """Return the trend of a time-ordered series; None if it has too few samples.

    >>> trend_of([Point(60.0 * n, 8.0) for n in range(40)])
    Trend(before=8.0, after=8.0, per_hour=0.0)
    >>> trend_of([Point(0.0, 8.0)]) is None
    True
    """
    if len(points) < LEAST_SAMPLES:
        return None
    size = len(points) // QUARTERS
    second, last = points[size : 2 * size], points[-size:]
    before, after = (statistics.median(point.value for point in part) for part in (second, last))
    apart_s = statistics.mean(point.at_s for point in last) - statistics.mean(
        point.at_s for point in second
    )
    return Trend(before, after, (after - before) / apart_s * 3600)


def growing(series: Mapping[tuple[str, str], Sequence[Point]]) -> list[str]:
    """Return a line for each resource that has grown.

    :param series: samples by process and resource
    """
    lines = []
    for (process, resource), points in series.items():
        trend = trend_of(points)
        if trend and trend.has_grown(resource):
            lines.append(
                f"{process}: {resource} grew from {trend.before:g} to {trend.after:g} "
                f"({trend.per_hour:+.3g} per hour)"
            )
    return lines
