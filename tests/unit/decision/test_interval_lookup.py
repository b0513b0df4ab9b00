# SPDX-License-Identifier: Apache-2.0
"""Checkpoint intervals from aggregates and server metadata, within the operator's limits."""

import threading
from concurrent import futures

import pytest

from acstor_common.model import checkpoint_intervals
from acstor_common.wire import checkpoint_messages as messages
from acstor_decision import interval_lookup
from acstor_decision import nova_client
from tests.fakes import checkpoint_hosts
from tests.fakes import manual_clock

NAME = checkpoint_intervals.NAME
SERVER, OTHER = checkpoint_hosts.SERVER, checkpoint_hosts.OTHER_SERVER


def aggregate(said, *hosts):
    return nova_client.Aggregate(frozenset(hosts), {NAME: said, "other": "1"})


@pytest.fixture
def cloud():
    return checkpoint_hosts.Nova()


def of(cloud, least_s=0, host="h1"):
    return interval_lookup.IntervalLookup(cloud, least_s).intervals_of_host(host)


@pytest.mark.parametrize(
    ("said", "wanted_s"),
    [
        ([], None),
        (["600"], 600),
        (["3600", "600", "0"], 600),
        (["0"], 0),
        (["soon", ""], None),
        (["5"], 30),
        ([7], None),
    ],
)
def test_interval_of_a_host_is_the_shortest_of_its_aggregates(cloud, said, wanted_s):
    cloud.groups = [aggregate(words, "h1") for words in said]
    cloud.groups += [aggregate("60", "h2"), nova_client.Aggregate({"h1"}, {})]
    assert of(cloud).of_host == wanted_s


def test_metadata_is_ignored_where_the_operator_offers_nothing(cloud):
    cloud.metadata = {"h1": {SERVER: {NAME: "60"}}}
    assert of(cloud) == messages.IntervalResponse()


@pytest.mark.parametrize(
    ("said", "wanted_s"),
    [
        ("600", 600),
        ("30", 300),
        ("1", 300),
        ("-1", None),
        ("9" * 11, checkpoint_intervals.MAX_S),
        ("9" * 255, None),
        ("0", 0),
        ("\u0663", None),
        ("1e9", None),
    ],
)
def test_metadata_interval_is_bounded_by_the_offered_one(cloud, said, wanted_s):
    cloud.metadata = {"h1": {SERVER: {NAME: said}}, "h2": {OTHER: {NAME: "600"}}}
    reported = [one.interval_s for one in of(cloud, least_s=300).of_servers]
    assert reported == ([] if wanted_s is None else [wanted_s])


def test_response_is_limited_in_servers(cloud):
    cloud.metadata = {"h1": {SERVER: {NAME: "600"}, OTHER: {NAME: "600"}}}
    lookup = interval_lookup.IntervalLookup(cloud, 60, max_servers=1)
    assert len(lookup.intervals_of_host("h1").of_servers) == 1


def test_aggregates_are_fetched_once_a_minute_for_all_hosts(cloud):
    now_s = 1000.0
    made = interval_lookup.IntervalLookup(cloud, 0, manual_clock.FunctionClock(lambda: now_s))
    for host in ("h1", "h2"):
        made.intervals_of_host(host)
    cloud.groups = [aggregate("600", "h1")]
    assert made.intervals_of_host("h1").of_host is None
    now_s += interval_lookup.KNOWN_S
    assert made.intervals_of_host("h1").of_host == 600


def test_nova_failure_is_raised_and_not_retried_at_once(cloud):
    cloud.failure = nova_client.NovaUnreachable("HTTP 403")
    made = interval_lookup.IntervalLookup(cloud, 60)
    with pytest.raises(nova_client.NovaUnreachable):
        made.intervals_of_host("h1")
    cloud.failure = None
    with pytest.raises(nova_client.NovaBusy, match="a moment ago"):
        made.intervals_of_host("h2")  # no second request at once


def test_failed_lookup_is_retried_after_a_minute(cloud):
    now_s = 1000.0
    made = interval_lookup.IntervalLookup(cloud, 0, manual_clock.FunctionClock(lambda: now_s))
    cloud.failure = nova_client.NovaUnreachable("timeout")
    with pytest.raises(nova_client.NovaUnreachable):
        made.intervals_of_host("h1")
    cloud.failure = None
    now_s += interval_lookup.KNOWN_S
    assert made.intervals_of_host("h1") == messages.IntervalResponse()


def test_concurrent_lookup_fails_at_once_as_busy(cloud):
    asked, answered = threading.Event(), threading.Event()

    def slowly():
        asked.set()
        assert answered.wait(30)
        return []

    cloud.list_aggregates = slowly
    made = interval_lookup.IntervalLookup(cloud, 0)
    with futures.ThreadPoolExecutor() as pool:
        first = pool.submit(made.intervals_of_host, "h1")
        assert asked.wait(30)
        try:
            second = pool.submit(made.intervals_of_host, "h2")
            assert isinstance(second.exception(timeout=5), nova_client.NovaBusy)
        finally:
            answered.set()
        assert first.result(30) == messages.IntervalResponse()


def test_lookups_of_one_host_are_rate_limited(cloud):
    now_s = 1000.0
    made = interval_lookup.IntervalLookup(cloud, 60, manual_clock.FunctionClock(lambda: now_s))
    made.intervals_of_host("h1")
    made.intervals_of_host("h2")
    with pytest.raises(nova_client.NovaBusy, match="h1 sent a request"):
        made.intervals_of_host("h1")
    now_s += interval_lookup.LEAST_S
    assert made.intervals_of_host("h1") == messages.IntervalResponse()
