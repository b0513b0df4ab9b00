# SPDX-License-Identifier: Apache-2.0
"""Values of metrics: by label, and of histograms."""

import itertools
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from prometheus_client import core

from acstor_agent.core import counters


def labelled(
    family: core.GaugeMetricFamily | core.CounterMetricFamily, values: Mapping[str, float]
) -> core.Metric:
    """Return a family of metrics with values by their label."""
    for label, value in values.items():
        family.add_metric([label], value)
    return family


def cumulative_buckets(
    latency: dict[str, Any], bounds_s: Sequence[float] = counters.LATENCY_BOUNDS_S
) -> tuple[list[tuple[str, int]], float]:
    """Return a histogram in Prometheus' form: cumulative buckets, and the sum."""
    bounds = [*map(str, bounds_s), "+Inf"]
    upto = itertools.accumulate(latency["buckets"])
    return list(zip(bounds, upto, strict=True)), latency["total_s"]
