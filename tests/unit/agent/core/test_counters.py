# SPDX-License-Identifier: Apache-2.0
import pytest

from acstor_agent.core import counters


def test_tally_counts_requests_and_bytes_by_origin():
    tally = counters.Tally()
    tally.add(counters.Origin.HOME, 100)
    tally.add(counters.Origin.HOME, 28)
    assert tally.as_dict()["home"] == {"requests": 2, "bytes": 128}
    assert tally.as_dict()["source"] == {"requests": 0, "bytes": 0}


def test_image_counters_add_up_to_the_total():
    total = counters.ReadCounters()
    one, two = counters.ReadCounters(total), counters.ReadCounters(total)
    one.read.add(counters.Origin.PEER, 5)
    two.read.add(counters.Origin.PEER, 7)
    two.read.add(counters.Origin.HOME, 1)
    one.count_read(0.003)
    two.count_waiting(1)
    two.count_failed(is_lost=False)
    one.count_failed(is_lost=True)
    assert total.read.as_dict()["peer"] == {"requests": 2, "bytes": 12}
    assert total.read.as_dict()["home"] == {"requests": 1, "bytes": 1}
    assert (total.latency.count, total.in_flight) == (1, 1)
    assert (total.failed_reads, total.lost_reads) == (2, 1)
    assert (one.failed_reads, one.lost_reads, one.in_flight) == (1, 1, 0)


@pytest.mark.parametrize(("share", "bound"), [(0.5, 0.001), (0.9, 0.001), (0.99, 1.0)])
def test_quantile_is_the_upper_bound_of_its_bucket(share, bound):
    latency = counters.Latency()
    for _ in range(95):
        latency.add(0.0007)
    for _ in range(5):
        latency.add(0.6)
    assert latency.quantile(share) == bound


def test_quantile_above_all_bounds_is_the_maximum():
    latency = counters.Latency()
    latency.add(77.0)
    assert latency.quantile(0.5) == 77.0
    assert latency.buckets[-1] == 1
