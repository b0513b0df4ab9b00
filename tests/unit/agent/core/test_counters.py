# SPDX-License-Identifier: Apache-2.0
import pytest

from acstor_agent.core import counters


def test_tally_counts_requests_and_bytes_by_origin():
    tally = counters.Tally()
    tally.add(counters.Origin.HOME, 100)
    tally.add(counters.Origin.HOME, 28)
    assert tally.as_dict()["home"] == {"requests": 2, "bytes": 128}
    assert tally.as_dict()["source"] == {"requests": 0, "bytes": 0}


@pytest.mark.parametrize(("share", "bound"), [(0.5, 0.001), (0.9, 0.001), (0.99, 1.0)])
def test_quantile_is_the_bound_of_its_bucket(share, bound):
    latency = counters.Latency()
    for _ in range(95):
        latency.add(0.0007)
    for _ in range(5):
        latency.add(0.6)
    assert latency.quantile(share) == bound


def test_quantile_above_all_bounds_is_the_longest_one():
    latency = counters.Latency()
    latency.add(77.0)
    assert latency.quantile(0.5) == 77.0
    assert latency.buckets[-1] == 1
