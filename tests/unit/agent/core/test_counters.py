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


def test_merged_histogram_counts_both():
    one, other = counters.Latency(), counters.Latency()
    for seconds in (0.003, 5.0):
        one.add(seconds)
    for seconds in (0.003, 9.0, 77.0):
        other.add(seconds)
    one.merge(other)
    assert one.count == 5 and one.buckets[-1] == 1
    assert (one.total_s, one.longest_s) == (5.0 + 0.003 + 0.003 + 9.0 + 77.0, 77.0)
    other.merge(counters.Latency())
    assert (other.count, other.longest_s) == (3, 77.0)


def test_quantile_above_all_bounds_is_the_maximum():
    latency = counters.Latency()
    latency.add(77.0)
    assert latency.quantile(0.5) == 77.0
    assert latency.buckets[-1] == 1


def test_exchange_keeps_the_total_of_images_that_it_forgets():
    exchange, image_id = counters.ExchangeCounters(), "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
    exchange.fetched[image_id].add(counters.Origin.HOME, 100)
    exchange.fetched[image_id].add(counters.Origin.SOURCE, 20)
    exchange.forget_image(image_id)
    exchange.forget_image(image_id)
    assert not exchange.fetched
    assert exchange.bytes_from([counters.Origin.HOME]) == 100
    assert exchange.bytes_from([counters.Origin.HOME, counters.Origin.SOURCE]) == 120
    assert exchange.bytes_from([]) == 0
