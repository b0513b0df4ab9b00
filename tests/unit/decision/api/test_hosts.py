# SPDX-License-Identifier: Apache-2.0
import datetime
import time

import pytest

from acstor_common.ring import location_policies
from acstor_common.wire import decision_messages
from acstor_decision.api.v1 import hosts
from acstor_decision.api.v1 import rings
from acstor_decision.api.v1 import traffic
from tests.unit.decision.api import conftest


def test_host_is_shown_with_its_last_sample_and_its_v_nodes(client, store):
    peers = {"h0001": decision_messages.PeerTraffic(7, 9, decision_messages.TimedTraffic(5, 0.5))}
    conftest.note(store, conftest.sample(0, sent_s=time.time(), peers=peers))
    conftest.publish(store, 1, hosts=2, vnodes=5)
    shown = client.get("/v1/hosts/h0000").json
    assert (shown["state"], shown["vnodes"], shown["location"]) == ("up", 5, "pod1/rack0")
    assert shown["rates"] == {
        "received": 1000.0,
        "sent": 2000.0,
        "chunks_received": 100.0,
        "chunks_sent": 200.0,
    }
    timed = {"received": 5, "took_s": 0.5}
    assert shown["peers"] == {"h0001": {"received": 7, "sent": 9, "timed": timed}}


def test_host_without_recent_samples_is_silent(client, store):
    conftest.note(store, conftest.sample(0, sent_s=1.0))
    assert client.get("/v1/hosts/h0000").json["state"] == hosts.HostState.SILENT
    assert client.get("/v1/hosts/h0000").json["vnodes"] == 0


def test_overloaded_host_is_shown_as_overloaded(client, store):
    conftest.note(store, conftest.sample(0, sent_s=time.time()), overloaded=2)
    shown = client.get("/v1/hosts/h0000").json
    assert (shown["state"], shown["overloads_in_a_row"]) == ("overloaded", 2)


def test_host_is_drained_and_enabled_again(client, store):
    conftest.note(store, conftest.sample(0))
    assert client.post("/v1/hosts/h0000/drain").json["is_drained"]
    assert store.list_drained() == {"h0000"}
    assert not client.post("/v1/hosts/h0000/enable", json={}).json["is_drained"]
    assert not store.list_drained()
    assert client.post("/v1/hosts/h0009/drain").status_code == 404


def test_host_list_continues_after_the_marker(client, store):
    conftest.note(store, *(conftest.sample(number) for number in range(5)))
    first = client.get("/v1/hosts?limit=2").json["hosts"]
    rest = client.get(f"/v1/hosts?marker={first[-1]['host']}").json["hosts"]
    assert [host["host"] for host in (*first, *rest)] == [f"h{n:04}" for n in range(5)]


@pytest.fixture
def various(client, store):
    """Return hosts that differ in every sort key, and one that never sent a sample."""
    now_s = time.time()
    for number, location in enumerate(("pod1/rack1", "pod1/rack2", "pod10/rack1", "pod1")):
        total = decision_messages.TrafficBytes(5000 * (4 - number), 0)
        reported = {"location": location, "total": total, "sent_s": 1.0 if number == 3 else now_s}
        conftest.note(store, conftest.sample(number, cache_bytes=number % 2, **reported))
    client.post("/v1/hosts/h0009/allow")
    return store


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ("sort=host:desc", [9, 3, 2, 1, 0]),
        ("sort=host", [0, 1, 2, 3, 9]),
        ("sort=load:asc", [3, 2, 1, 0, 9]),
        ("sort=load:desc&limit=2", [0, 1]),
        ("sort=load:desc&marker=h0001&limit=2", [2, 3]),
        ("sort=cache_bytes", [0, 2, 9, 1, 3]),
        ("sort=cache_bytes:desc", [1, 3, 0, 2, 9]),
        ("sort=last_seen_at:desc&marker=h0003", [9]),
        ("state=silent", [3, 9]),
        ("state=up&limit=1", [0]),
        ("location=pod1", [0, 1, 3]),
        ("location=pod1/rack2", [1]),
        ("enrolment=allowed", [9]),
        ("enrolment=none&state=silent", [3]),
        ("state=up&marker=h0000&sort=host:desc", []),
    ],
)
def test_hosts_are_filtered_and_sorted(query, numbers, client, various):
    found = client.get(f"/v1/hosts?{query}").json["hosts"]
    assert [host["host"] for host in found] == [f"h{number:04}" for number in numbers]


def test_ring_history_is_listed_newest_first_and_paged(client, store):
    for epoch in (1, 2, 4):
        conftest.publish(store, epoch, hosts=1)
    assert [row["epoch"] for row in client.get("/v1/rings").json["rings"]] == [4, 2, 1]
    assert [row["epoch"] for row in client.get("/v1/rings?marker=4").json["rings"]] == [2, 1]
    assert client.get("/v1/ring").json["epoch"] == 4
    assert client.get("/v1/rings/3").status_code == 404
    shown = client.get("/v1/rings/2").json
    assert [owner["vnodes"] for owner in shown["owners"]] == [3]
    assert shown["published_at"] == "2027-01-15T08:00:02Z"


@pytest.mark.parametrize("thresholds", [(None, None), (1, None), (1, 9)])
def test_ring_table_shows_its_thresholds(thresholds, client, store):
    conftest.publish(store, 1, hosts=2, thresholds=thresholds)
    for path in ("/v1/ring", "/v1/rings/1"):
        shown = client.get(path).json
        assert (shown["threshold"], shown["outer_threshold"]) == thresholds


def test_ring_table_shows_location_policies(client, store):
    places = {
        "pod1/rack0": location_policies.LocationPolicy(20),
        "pod2": location_policies.LocationPolicy(outer_threshold=0),
    }
    conftest.publish(store, 1, hosts=2, thresholds=(1, 9), places=places)
    shown = client.get("/v1/ring").json
    assert shown["places"] == {"pod1/rack0": {"share": 20}, "pod2": {"outer_threshold": 0}}


def test_missing_ring_table_is_not_found(client):
    assert client.get("/v1/ring").status_code == 404
    assert client.get("/v1/hosts").json == {"hosts": []}


def test_owners_of_a_table_are_cached():
    rings.owners.cache_clear()
    text = '{"version": 1, "epoch": 1, "hosts": []}'
    assert rings.owners(1, text) is rings.owners(1, text)


@pytest.mark.parametrize("query", ["", "?host=h0000", "?last_s=60", "?last_s=60&host=h0000"])
def test_traffic_covers_the_last_collection_or_a_time_window(query, client, store):
    now_s = time.time()
    for age_s in (1000, 10, 5):
        conftest.note(
            store,
            conftest.sample(0, sent_s=now_s - age_s),
            conftest.sample(1, sent_s=now_s - age_s),
        )
    found = client.get(f"/v1/traffic{query}").json["traffic"]
    times = 2 if "last_s" in query else 1
    assert len(found) == times * (1 if "host" in query else 2)
    assert found[0]["rates"]["sent"] == 2000.0


def exchange(store, number, peers, **fields):
    """Record the bytes that a host received from and sent to peers, by their numbers."""
    traffic = {f"h{at:04}": decision_messages.PeerTraffic(*pair) for at, pair in peers.items()}
    total = [min(sum(column), 1 << 62) for column in zip(*peers.values(), strict=True)] or [0, 0]
    chunks = decision_messages.TrafficBytes(*total)
    conftest.note(
        store,
        conftest.sample(
            number, **{"sent_s": time.time(), "peers": traffic, "chunks": chunks, **fields}
        ),
    )


def flows(client, query=""):
    found = client.get(f"/v1/traffic/peers{query}").json
    return found["hosts"], [
        (flow["sender"], flow["receiver"], flow["bytes"]) for flow in found["flows"]
    ]


def test_flows_between_peers_are_those_that_receivers_report(client, store):
    assert flows(client) == ([], [])
    exchange(store, 0, {1: (10, 500)})
    exchange(store, 1, {0: (400, 10)})
    exchange(store, 2, {})
    assert flows(client) == (
        ["h0000", "h0001"],
        [("h0000", "h0001", 400), ("h0001", "h0000", 10)],
    )


def test_flows_of_less_busy_hosts_are_merged(client, store):
    exchange(store, 0, {1: (0, 500), 2: (30, 20), 3: (5, 7)})
    exchange(store, 1, {0: (400, 0), 2: (0, 60)})
    exchange(store, 2, {0: (20, 30), 1: (60, 0)})
    hosts_, found = flows(client, "?limit=2")
    assert hosts_ == ["h0000", "h0001"]
    assert found == [
        ("h0000", "h0001", 400),
        ("h0001", "", 60),
        ("", "h0000", 35),
        ("h0000", "", 27),
    ]


def test_flows_name_no_silent_hosts_and_no_host_as_its_own_peer(client, store):
    exchange(store, 0, {1: (7, 7)}, sent_s=1.0)
    exchange(store, 1, {0: (9, 0), 1: (5, 5)})
    assert flows(client) == (["h0001"], [("", "h0001", 9)])


def test_forged_traffic_does_not_overflow_the_response(client, store):
    most = decision_messages.MAX_NUMBER
    exchange(store, 0, {at: (most, most) for at in range(1, 9)})
    assert flows(client) == (["h0000"], [("", "h0000", most), ("h0000", "", most)])


@pytest.mark.parametrize("limit", [0, 41, "many"])
def test_peer_traffic_refuses_invalid_limits(limit, client):
    assert client.get(f"/v1/traffic/peers?limit={limit}").status_code == 400


def test_traffic_query_refuses_an_invalid_host_name():
    with pytest.raises(ValueError, match="host"):
        traffic.TrafficQuery(host="a b")


def test_times_are_utc():
    assert hosts._time(0.0) == datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
