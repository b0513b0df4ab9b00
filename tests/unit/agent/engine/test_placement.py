# SPDX-License-Identifier: Apache-2.0
import json
import pathlib
import uuid

import pytest

from acstor_agent.engine.ring import placement
from acstor_agent.engine.ring import ring_view
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.ring import location_policies

OIDS = [ids.oid_of(ids.cid_of(b"%d" % n)) for n in range(400)]
PODS = {"h1": "s/p1", "h2": "s/p1", "h3": "s/p2", "h4": "s/p2"}


def table(
    epoch: int = 1,
    pods: dict[str, str] = PODS,
    vnodes: dict[str, int] | None = None,
    threshold: int | None = None,
    outer: int | None = None,
    policies: dict[str, location_policies.LocationPolicy] | None = None,
) -> hash_ring.Ring:
    weights = vnodes or {}
    hosts = tuple(
        hash_ring.RingHost(host, f"10.0.0.{host[1:]}:7201", weights.get(host, 50), place)
        for host, place in pods.items()
    )
    return hash_ring.Ring(epoch, hosts, threshold, outer, {}, policies or {})


def test_near_owners_come_first_and_far_ones_are_the_last_resort():
    of = table(threshold=1)
    for oid in OIDS:
        assert set(placement.owners(of, "h1", oid, 8)[:2]) == {"h1", "h2"}
        assert set(placement.owners(of, "h3", oid, 8)[:2]) == {"h3", "h4"}
        assert sorted(placement.owners(of, "h1", oid, 8)) == sorted(PODS)
        assert placement.home(of, "h1", oid) == placement.owners(of, "h2", oid, 1)[0]


def test_empty_table_has_no_home_and_no_upstream():
    assert placement.home(hash_ring.Ring(0, ()), "h1", OIDS[0]) is None
    assert placement.upstreams(hash_ring.Ring(0, ()), table(), "h1", OIDS[0]) == []
    assert placement.owners(hash_ring.Ring(0, ()), "h1", OIDS[0], 4) == ()


def test_image_home_is_stable_and_images_spread_over_all_hosts():
    names = [ids.ImageId(str(uuid.UUID(int=n))) for n in range(100)]
    found = [placement.image_home(table(threshold=1), image_id) for image_id in names]
    assert set(found) == set(PODS)
    assert found == [placement.image_home(table(epoch=9), image_id) for image_id in names]
    assert placement.image_home(hash_ring.Ring(0, ()), names[0]) is None


def test_home_has_no_upstream_without_former_table_or_outer_group():
    for of in (table(), table(threshold=1)):
        assert all(placement.upstreams(of, None, host, oid) == [] for host in PODS for oid in OIDS)


def test_pod_home_asks_the_cloud_home_unless_it_is_the_same_host():
    of = table(threshold=1, outer=2)
    asked = 0
    for oid in OIDS:
        cloud_home = of.owners_at(oid, 1)[0]
        for host in ("h1", "h3"):
            home = placement.home(of, host, oid)
            expected = [] if home == cloud_home else [cloud_home]
            assert placement.upstreams(of, None, home, oid) == expected
            asked += len(expected)
    assert asked == len(OIDS)  # one of the two pods has the cloud's home


def test_outer_home_is_the_home_of_its_own_group_for_any_share():
    of = table(threshold=1, outer=2, policies={"s/p1": location_policies.LocationPolicy(10)})
    senders = [placement.outer_home(of, "h3", oid) for oid in OIDS]
    for oid, sender in zip(OIDS, senders, strict=True):
        assert placement.home(of, sender, oid) == sender
        assert placement.outer_home(of, "h1", oid) == sender
        assert placement.upstreams(of, None, sender, oid) == []
    assert 0.02 < sum(sender in ("h1", "h2") for sender in senders) / len(OIDS) < 0.2


def test_golden_table_with_locations_yields_the_committed_homes():
    data = pathlib.Path(__file__).parents[3] / "data" / "ring-v1-places.json"
    golden = json.loads(data.read_bytes())
    of = hash_ring.decode(json.dumps(golden["table"]).encode(), "golden")
    assert json.loads(hash_ring.encode(of)) == golden["table"]
    for case in golden["homes"]:
        cid, src = ids.Cid(bytes.fromhex(case["cid"])), ids.HostId(case["src"])
        assert list(of.group_of(src).owners_of(cid)) == case["near"]
        assert placement.outer_home(of, src, ids.oid_of(cid)) == case["outer_home"]


def test_owners_of_a_chunk_are_those_of_both_tables_and_the_outer_home():
    former, now = table(pods={"h1": "s/p1", "h3": "s/p2"}), table(2, threshold=1, outer=2)
    view = ring_view.RingView(ids.HostId("h1"), now, former)
    for oid in OIDS:
        expected = placement.owners(now, "h1", oid, 8), placement.owners(former, "h1", oid, 8)
        outer = placement.outer_home(now, "h1", oid)
        assert view.all_owners(oid) == (expected[0], (outer,), expected[1])


def test_cached_owners_are_bounded():
    view = ring_view.RingView(ids.HostId("h1"), table(), cached_arcs=10)
    for oid in OIDS:
        assert view.all_owners(oid) == (placement.owners(table(), "h1", oid, 8),)
        assert len(view._owners_of_arcs) <= 10


def test_group_with_outer_threshold_zero_has_no_outer_home():
    of = table(
        threshold=1, outer=2, policies={"s/p1": location_policies.LocationPolicy(outer_threshold=0)}
    )
    for oid in OIDS:
        assert placement.outer_home(of, "h1", oid) is None
        assert placement.upstreams(of, None, placement.home(of, "h1", oid), oid) == []
        assert placement.outer_home(of, "h3", oid) is not None


def test_deprioritized_former_home_is_not_asked():
    before = table(1)
    after = table(2, vnodes={"h1": 5, "h2": 65, "h3": 65, "h4": 65})
    moved = [oid for oid in OIDS if placement.home(before, "h1", oid) == "h1"]
    for oid in moved:
        new = placement.home(after, "h2", oid)
        expected = [] if new != "h1" else None
        assert expected is None or placement.upstreams(after, before, new, oid) == expected
    assert any(placement.home(after, "h2", oid) != "h1" for oid in moved)


def test_former_home_that_kept_its_v_nodes_is_asked():
    before, after = table(1), table(2, vnodes={"h1": 900})
    moved = [
        oid for oid in OIDS if placement.home(before, "h1", oid) != placement.home(after, "h1", oid)
    ]
    assert moved and all(after.is_deprioritized(host) for host in ("h2", "h3", "h4"))
    for oid in moved:
        old = placement.home(before, "h1", oid)
        assert placement.upstreams(after, before, "h1", oid) == [old]


def test_drained_former_home_is_asked():
    before = table(1)
    hosts = tuple(
        hash_ring.named_host(
            ids.HostId(h.host),
            h.address,
            frozenset() if h.host == "h1" else frozenset(h.iter_vnodes()),
        )
        for h in before.hosts
    )
    after = hash_ring.Ring(2, hosts)
    oid = next(oid for oid in OIDS if placement.home(before, "h2", oid) == "h1")
    new = placement.home(after, "h2", oid)
    assert placement.upstreams(after, before, new, oid) == ["h1"]


def test_new_and_former_home_ask_each_other():
    before, after = table(1), table(2, vnodes={"h1": 200})
    moved = [
        oid for oid in OIDS if placement.home(before, "h1", oid) != placement.home(after, "h1", oid)
    ]
    assert moved
    for oid in OIDS:
        old, new = placement.home(before, "h1", oid), placement.home(after, "h1", oid)
        if oid in moved:
            assert placement.upstreams(after, before, new, oid) == [old]
            assert placement.upstreams(after, before, old, oid) == [new]
        for bystander in {*PODS} - {old, new}:
            assert placement.upstreams(after, before, bystander, oid) == []


def test_new_home_with_the_old_table_asks_the_home_of_that_table():
    before, after = table(1), table(2, vnodes={"h1": 200})
    oid = next(o for o in OIDS if placement.home(before, "h1", o) != placement.home(after, "h1", o))
    old, new = placement.home(before, "h1", oid), placement.home(after, "h1", oid)
    assert placement.upstreams(before, None, new, oid, "h9", is_moved=True) == [old]
    assert placement.upstreams(before, None, new, oid, old, is_moved=True) == []
    assert placement.upstreams(before, None, old, oid, "h9", is_moved=True) == []
    # It asks as its guest's host, too; then the former home has it read the chunk itself.
    assert placement.upstreams(after, before, old, oid, requester=new) == [new]


def test_former_home_with_the_new_table_leaves_reads_to_the_new_home():
    before, after = table(1), table(2, vnodes={"h1": 200})
    for oid in OIDS:
        old, new = placement.home(before, "h1", oid), placement.home(after, "h1", oid)
        assert placement.is_left_to_new_home(after, before, old, oid, new) == (old != new)
        assert not placement.is_left_to_new_home(before, None, old, oid, new)
        assert not placement.is_left_to_new_home(after, None, old, oid, new)
        assert not placement.is_left_to_new_home(after, before, old, oid, None)
        assert not any(
            placement.is_left_to_new_home(after, before, h, oid, new) for h in {*PODS} - {old, new}
        )


def test_requester_is_never_its_own_upstream():
    before, after = table(1), table(2, vnodes={"h1": 200})
    oid = next(o for o in OIDS if placement.home(before, "h1", o) != placement.home(after, "h1", o))
    old, new = placement.home(before, "h1", oid), placement.home(after, "h1", oid)
    assert placement.upstreams(after, before, new, oid, requester=old) == []


def test_former_home_that_left_the_ring_is_asked():
    before = table(1)
    after = table(2, {host: place for host, place in PODS.items() if host != "h4"})
    oid = next(o for o in OIDS if placement.home(before, "h1", o) == "h4")
    new = placement.home(after, "h1", oid)
    assert placement.upstreams(after, before, new, oid) == ["h4"]


def test_former_home_outside_the_new_group_is_not_asked():
    before, after = table(1), table(2, threshold=1)
    for oid in OIDS:
        for host in ("h1", "h3"):
            new = placement.home(after, host, oid)
            upstreams = placement.upstreams(after, before, new, oid)
            assert all(up in after.group_of(new) for up in upstreams)


@pytest.mark.parametrize("threshold", [None, 1])
def test_equal_former_table_adds_no_upstream(threshold):
    of = table(threshold=threshold)
    assert all(placement.upstreams(of, of, host, oid) == [] for host in PODS for oid in OIDS)
