# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from collections.abc import Collection
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.ring import vnode
from acstor_common.wire import decision_messages
from acstor_decision.core import decider
from acstor_decision.core import remap
from acstor_decision.core import ring_conversion
from acstor_decision.core import threshold
from acstor_decision.core.membership import members

LINK_BYTES_S = 1000
COLLECTION_S = 5.0
EMPTY = decider.VNodeTable({})
H1, H2, H3 = (ids.HostId(f"h{n}") for n in (1, 2, 3))
Reason = decider.ChangeReason
Thresholds = threshold.Thresholds


class Cloud:
    """A decider whose decisions are all published; the clock advances by collection intervals."""

    def __init__(self, hosts: int, **policy: Any) -> None:
        self.members = members.Members(
            members.MembershipLimits(collection_s=COLLECTION_S, dead_after_samples=3)
        )
        self.decider = decider.Decider(decider.RemapPolicy(**policy), self.members, EMPTY)
        self.hosts = [f"h{n}" for n in range(1, hosts + 1)]
        self.sketches: dict[str, tuple[int, ...]] = {}
        self.places: dict[str, str] = {}
        self.links: dict[str, int] = {}
        self.wait: Callable[[str, str], float] | None = None
        self.round = 0
        self.collect({}, times=2)

    def collect(
        self, shares: dict[str, float], *, times: int = 1, drained: Collection[str] = ()
    ) -> list[decider.Decision]:
        """Let every host send a sample; ``shares`` are the shares of the links used for sending."""
        made = []
        for _ in range(times):
            self.round += 1
            for host in self.hosts:
                self.report_load(host, shares.get(host, 0.0))
            decision = self.decider.decide_table(self.round * COLLECTION_S, drained)
            if decision is not None:
                self.decider.commit_decision(decision)
                made.append(decision)
        return made

    def report_load(self, host: str, share: float) -> None:
        sample = decision_messages.Sample(
            host=host,
            address=f"10.0.{int(host[1:]) >> 8}.{int(host[1:]) & 255}:7201",
            location=self.places.get(host, ""),
            session=1,
            started_s=0,
            number=self.round,
            sent_s=self.round * COLLECTION_S,
            interval_s=COLLECTION_S,
            link_bytes_s=self.links.get(host, LINK_BYTES_S),
            total=decision_messages.TrafficBytes(0, int(share * LINK_BYTES_S * COLLECTION_S)),
            sketch=self.sketches.get(host, ()),
            peers={
                other: decision_messages.PeerTraffic(
                    1000, 0, decision_messages.TimedTraffic(1000, self.wait(host, other))
                )
                for other in self.hosts
                if self.wait and other != host
            },
        )
        now_s = self.round * COLLECTION_S
        assert self.members.accept_sample(sample, now_s, now_s) is None

    def counts(self) -> dict[str, int]:
        return {host: len(place.names) for host, place in self.decider.table.hosts.items()}


def test_new_hosts_get_even_shares_of_their_own_v_nodes():
    cloud = Cloud(3)
    assert cloud.decider.table.vnodes_by_host() == {
        h: vnode.first_vnodes(h, 100) for h in (H1, H2, H3)
    }
    assert cloud.collect({}, times=5) == []


def test_a_burst_of_one_collection_moves_nothing():
    cloud = Cloud(4)
    for _ in range(5):
        assert cloud.collect({"h1": 1.0}) == []
        assert cloud.collect({}) == []
        assert cloud.collect({"h1": 1.0, "h2": 0.9}) == []
        assert cloud.collect({"h3": 1.0}) == []


def test_uneven_traffic_without_overload_moves_nothing():
    cloud = Cloud(4)
    assert cloud.collect({"h1": 0.79, "h2": 0.3}, times=6) == []


def test_two_overloaded_collections_move_v_nodes_once():
    cloud = Cloud(4)
    [decision] = cloud.collect({"h1": 1.0}, times=2)
    assert (decision.reason, decision.overloaded) == (Reason.OVERLOAD, (H1,))
    counts = cloud.counts()
    assert counts == {"h1": 13, "h2": 129, "h3": 129, "h4": 129}
    assert decision.moved == 87
    assert cloud.collect({"h1": 1.0}, times=6) == []
    assert cloud.counts() == counts


def test_noise_moves_nothing_while_a_handled_overload_lasts():
    cloud = Cloud(4)
    cloud.collect({"h1": 1.0}, times=2)
    for noise in (0.3, 0.0, 0.2, 0.4):
        assert cloud.collect({"h1": 1.0, "h2": noise, "h3": 0.4 - noise}, times=3) == []


def test_overload_that_moves_to_another_host_is_followed():
    cloud = Cloud(4)
    cloud.collect({"h1": 1.0}, times=2)
    [decision] = cloud.collect({"h2": 1.0}, times=4)
    assert decision.overloaded == (H2,)
    assert cloud.counts() == {"h1": 129, "h2": 13, "h3": 129, "h4": 129}


def test_one_overloaded_host_of_many_is_relieved():
    cloud = Cloud(60)
    [decision] = cloud.collect({"h1": 1.0}, times=2)
    assert decision.overloaded == (H1,) and cloud.counts()["h1"] < 20
    assert decision.moved < 0.02 * 60 * 100


def test_v_nodes_move_to_the_host_with_the_most_common_chunks():
    cloud = Cloud(3)
    cloud.sketches = {"h1": (1, 2, 3, 4), "h2": (5, 6, 7, 8), "h3": (1, 2, 3, 9)}
    cloud.collect({"h1": 1.0, "h2": 0.2}, times=2)
    taken = {host: {n for n in place.names if n.made_for == H1} for host, place in places(cloud)}
    wanted = cloud.counts()["h3"] - 100
    assert len(taken[H3]) == min(wanted, 100 - cloud.counts()["h1"])
    assert len(taken[H3]) > len(taken[H2])


def places(cloud: Cloud) -> Any:
    return cloud.decider.table.hosts.items()


def test_overload_of_all_hosts_moves_nothing():
    cloud = Cloud(5)
    assert cloud.collect(dict.fromkeys(cloud.hosts, 1.0), times=4) == []


def test_single_host_keeps_all_v_nodes():
    cloud = Cloud(1)
    assert cloud.collect({"h1": 1.0}, times=4) == []
    assert cloud.counts() == {"h1": 100}


def test_a_change_too_small_to_matter_moves_nothing():
    cloud = Cloud(4, least_moved=0.05)
    assert cloud.collect({"h1": 0.9, "h2": 0.9, "h3": 0.88, "h4": 0.92}, times=4) == []


def test_traffic_moves_nothing_when_remapping_is_disabled():
    cloud = Cloud(4, may_remap=False)
    assert cloud.collect({"h1": 1.0}, times=4) == []


def test_configured_lambda_determines_the_v_node_counts():
    cloud = Cloud(4, factor=1.67, weight_limit=0.2)
    [decision] = cloud.collect({"h1": 1.0}, times=2)
    assert decision.reason is Reason.OVERLOAD
    assert cloud.counts() == {"h1": 2, "h2": 20, "h3": 20, "h4": 20}  # 21 without the bound


def test_unpublished_table_is_decided_again():
    cloud = Cloud(4)
    cloud.collect({"h1": 1.0})
    cloud.round += 1
    for host in cloud.hosts:
        cloud.report_load(host, 1.0 if host == "h1" else 0.0)
    now_s = cloud.round * COLLECTION_S
    assert cloud.decider.decide_table(now_s) == cloud.decider.decide_table(now_s) is not None


def test_drained_host_stays_on_the_table_without_v_nodes():
    cloud = Cloud(3)
    before = cloud.decider.table
    [decision] = cloud.collect({}, drained={"h2"})
    assert (decision.reason, decision.moved) == (Reason.MEMBERS, 100)
    assert cloud.counts() == {"h1": 100, "h2": 0, "h3": 100}
    assert cloud.collect({"h1": 1.0}, times=2, drained={"h2"})[0].reason is Reason.OVERLOAD
    assert cloud.counts()["h2"] == 0
    assert cloud.collect({}, times=3, drained={"h2"}) == []
    assert len(cloud.collect({})) == 1
    assert cloud.counts()["h2"] == 100
    assert before.hosts[H2].address == cloud.decider.table.hosts[H2].address


def test_fully_drained_cloud_has_no_homes():
    cloud = Cloud(2)
    cloud.collect({}, drained={"h1", "h2"})
    assert cloud.counts() == {"h1": 0, "h2": 0}
    assert cloud.collect({"h1": 1.0}, times=3, drained={"h1", "h2"}) == []


def test_leaving_and_returning_host_moves_only_its_own_v_nodes():
    cloud = Cloud(3)
    before = cloud.decider.table
    cloud.hosts.remove("h3")
    [gone] = cloud.collect({}, times=5)
    assert gone.moved == 100
    assert gone.table.vnodes_by_host() == {h: vnode.first_vnodes(h, 100) for h in (H1, H2)}
    cloud.hosts.append("h3")
    [back] = cloud.collect({}, times=5)
    assert back.moved == 100
    assert cloud.decider.table == before


def test_flapping_host_rejoins_only_when_it_stays():
    cloud = Cloud(3)
    cloud.hosts.remove("h3")
    cloud.collect({}, times=5)
    for _ in range(3):  # one sample, then silence
        cloud.hosts.append("h3")
        assert cloud.collect({}) == []
        cloud.hosts.remove("h3")
        assert cloud.collect({}, times=5) == []


RACKS = {f"h{n}": f"pod{n % 2}/rack{n % 4}" for n in range(1, 9)}


def test_thresholds_change_after_two_equal_observations():
    cloud = Cloud(8)
    cloud.places = RACKS
    cloud.collect({})
    cloud.decider.observe_loads([])
    assert cloud.collect({}) == []
    for _ in range(2):
        cloud.decider.observe_loads([2])
    [decision] = cloud.collect({})
    assert (decision.reason, decision.moved) == (Reason.THRESHOLD, 0)
    assert decision.table.thresholds == Thresholds(1, 2)
    published = ring_conversion.to_ring(decision.table, 2)
    assert (published.threshold, published.outer_threshold) == (1, 2)
    assert ring_conversion.from_ring(published) == decision.table
    cloud.places = dict.fromkeys(RACKS, "pod1/rack1")
    cloud.collect({})
    cloud.decider.observe_loads([2])
    assert cloud.collect({}) == []
    cloud.decider.observe_loads(None)
    assert cloud.collect({})[0].table.thresholds == Thresholds()


TEN_GBIT_S = 1_250_000_000


def test_segment_length_follows_most_links_after_two_collections():
    cloud = Cloud(5)
    cloud.links = {f"h{n}": TEN_GBIT_S for n in (1, 2, 3, 4)}
    cloud.collect({})
    cloud.decider.observe_loads()
    assert cloud.collect({}) == []
    cloud.decider.observe_loads()
    [decision] = cloud.collect({})
    assert (decision.reason, decision.moved) == (Reason.SEGMENTS, 0)
    assert ring_conversion.to_ring(decision.table, 2).segment_chunks == 16
    assert ring_conversion.from_ring(ring_conversion.to_ring(decision.table, 2)) == decision.table
    cloud.links = {"h1": TEN_GBIT_S}
    cloud.collect({})
    cloud.decider.observe_loads()
    assert cloud.collect({}) == []
    cloud.decider.observe_loads()
    assert cloud.collect({})[0].table.segment_chunks == 1


def observe_segments(cloud: Cloud, collections: int) -> list[int]:
    """Return the segment lengths that the decider publishes."""
    published = []
    for _ in range(collections):
        cloud.decider.observe_loads()
        published += [decision.table.segment_chunks for decision in cloud.collect({})]
    return published


def test_one_lying_host_does_not_make_segment_length_flap():
    cloud = Cloud(11)
    cloud.links = {
        f"h{n}": TEN_GBIT_S for n in range(1, 6)
    }  # with the median, one host could decide
    cloud.collect({})
    published = []
    for collection in range(10):
        cloud.links["h11"] = TEN_GBIT_S if collection % 2 else LINK_BYTES_S
        cloud.collect({})
        published += observe_segments(cloud, 3)
    assert published == []


def test_joining_hosts_with_slow_links_do_not_make_segment_length_flap():
    cloud = Cloud(10)
    cloud.links = {f"h{n}": TEN_GBIT_S for n in range(1, 8)}
    cloud.collect({})
    assert observe_segments(cloud, 3) == [16]
    for number in range(11, 18):
        cloud.hosts.append(f"h{number}")  # with slow links
        cloud.collect({}, times=2)
        assert set(observe_segments(cloud, 3)) <= {16}
    for number in range(18, 24):
        cloud.hosts.append(f"h{number}")
    cloud.collect({}, times=2)
    assert 1 in observe_segments(cloud, 3)


def successor_of(cloud: Cloud) -> Cloud:
    """Return an instance that continues with a cloud's table and has no samples yet."""
    made = Cloud(0)
    made.round, made.decider.table = cloud.round, cloud.decider.table
    for host, place in cloud.decider.table.hosts.items():
        made.members.restore_member(host, place.address, place.location, cloud.round * COLLECTION_S)
    return made


def test_new_leader_keeps_segment_length_before_hosts_report():
    cloud = Cloud(6)
    cloud.links = {f"h{n}": TEN_GBIT_S for n in range(1, 7)}
    cloud.collect({})
    assert observe_segments(cloud, 3) == [16]
    assert observe_segments(successor_of(cloud), 3) == []


def test_host_without_samples_keeps_its_v_nodes_in_a_remap():
    successor = successor_of(Cloud(4))
    successor.hosts = ["h1", "h2", "h3"]
    places = successor.collect({"h1": 0.9}, times=3)[-1].table.hosts
    assert abs(len(places[ids.HostId("h4")].names) - len(places[H2].names)) <= 1


THREE_RACKS = {f"h{number}": f"pod/rack{number % 3}" for number in range(1, 13)}


def racked(wait: Callable[[str, str], float]) -> Cloud:
    """Return a cloud of three racks of four hosts that report waits for each other."""
    cloud = Cloud(12)
    cloud.places = THREE_RACKS
    cloud.wait = wait
    for _ in range(3):
        cloud.decider.observe_loads()
        cloud.collect({})
    assert cloud.decider.table.thresholds == Thresholds(1, threshold.EVERYWHERE)
    return cloud


def observe(cloud: Cloud, times: int) -> list[decider.Decision]:
    made = []
    for _ in range(times):
        made += cloud.collect({})
        cloud.decider.observe_loads()
    return made + cloud.collect({})


def test_rack_with_a_slow_uplink_serves_less_outside_and_as_much_within():
    cloud = racked(lambda one, other: 5.0 if THREE_RACKS[other] == "pod/rack1" else 1.0)
    [decision] = observe(cloud, 3)
    assert (decision.reason, decision.moved) == (Reason.PLACES, 0)
    assert {place: rule.share for place, rule in decision.table.policies.items()} == {
        "pod/rack1": 20
    }
    published = ring_conversion.to_ring(decision.table, 4)
    assert (
        ring_conversion.from_ring(hash_ring.decode(hash_ring.encode(published), "table"))
        == decision.table
    )
    owners = [published.owners_at(ids.Oid(n << 50), 1)[0] for n in range(1 << 14)]
    slow = sum(cloud.places[owner] == "pod/rack1" for owner in owners) / len(owners)
    assert 0.05 < slow < 0.14, "a ninth, where it was a third"
    within = published.group_of(ids.HostId("h1"))
    assert {cloud.places[host.host] for host in within.hosts} == {"pod/rack1"}
    assert sum(host.vnodes for host in within.hosts) == 400


@pytest.mark.parametrize("lie", [1e-6, 1e6])
def test_one_host_with_false_wait_times_changes_no_table(lie):
    cloud = racked(lambda one, other: lie if one == "h1" and other != "h2" else 1.0)
    assert observe(cloud, 30) == []


def test_one_deliberately_slow_host_changes_no_table():
    cloud = racked(lambda one, other: 1e6 if other == "h1" else 1.0)
    assert observe(cloud, 30) == []


def test_group_with_a_faster_pod_gets_its_own_outer_threshold():
    cloud = Cloud(16)
    cloud.places = {host: f"pod{n % 2}/rack{n % 4}" for n, host in enumerate(cloud.hosts)}

    def wait(one: str, other: str) -> float:
        is_far = cloud.places[one][:4] != cloud.places[other][:4]
        return 9.0 if is_far and cloud.places[one] == "pod1/rack3" else 1.0

    cloud.wait = wait
    for _ in range(3):
        cloud.decider.observe_loads()
        cloud.collect({})
    [decision] = observe(cloud, 3)
    assert {p: rule.outer_threshold for p, rule in decision.table.policies.items()} == {
        "pod1/rack3": 2
    }
    published = ring_conversion.to_ring(decision.table, 4)
    outer = {host: published.outer_group_of(ids.HostId(host)) for host in cloud.hosts}
    for host, of in outer.items():
        assert of is not None
        assert len(of.hosts) == (8 if cloud.places[host] == "pod1/rack3" else 16)


def test_locations_are_used_when_all_hosts_have_equal_levels():
    cloud = Cloud(3)
    cloud.places = {"h1": "pod1/rack1"}
    assert cloud.collect({}) == []
    cloud.places = {"h1": "pod1/rack1", "h2": "pod1/rack2", "h3": "pod2/rack1"}
    [decision] = cloud.collect({})
    assert decision.moved == 0
    assert decision.table.hosts[H3].location == "pod2/rack1"


def test_host_with_other_location_levels_is_unplaced():
    cloud = Cloud(4)
    cloud.places = {f"h{n}": f"pod{n % 2}/rack{n}" for n in range(1, 5)}
    cloud.collect({})
    cloud.places["h4"] = "a/b/c/d/e"
    [decision] = cloud.collect({})
    places = decision.table.hosts
    assert places[ids.HostId("h4")].location == "unplaced/unplaced"
    assert [places[h].location for h in (H1, H2, H3)] == [cloud.places[h] for h in (H1, H2, H3)]
    cloud.places["h4"] = ""
    assert cloud.collect({}) == []
    ring_conversion.to_ring(decision.table, 1)


def test_host_that_claims_an_idle_huge_link_gets_a_bounded_share():
    """Bounds what a compromised host gains by false figures while others are overloaded."""
    cloud = Cloud(20)
    report_load = cloud.report_load

    def lie(host: str, share: float) -> None:
        if host != "h20":
            return report_load(host, share)
        reported = cloud.members
        report_load(host, 0.0)
        member = reported[ids.HostId(host)]
        member.last = msgspec.structs.replace(member.last, link_bytes_s=2**62)

    cloud.report_load = lie
    cloud.collect({f"h{n}": 0.9 for n in range(1, 20)}, times=4)
    counts = cloud.counts()
    most = int(cloud.decider.policy.weight_limit * cloud.decider.policy.vnodes_per_host)
    assert counts["h20"] <= most and min(counts.values()) >= 1


def test_revocation_publishes_a_table_even_without_hosts():
    cloud = Cloud(3)
    cloud.decider.set_revoked({"h3": 7})
    cloud.members.remove_hosts(["h3"])
    cloud.hosts.remove("h3")
    [decision] = cloud.collect({})
    assert decision.reason is Reason.REVOKED and set(decision.table.hosts) == {H1, H2}
    assert ring_conversion.to_ring(decision.table, 5).revoked == {"h3": 7}
    assert cloud.collect({}) == []
    cloud.hosts.clear()
    cloud.members.remove_hosts(["h1", "h2"])
    cloud.decider.set_revoked({"h1": 8, "h2": 8, "h3": 7})
    [decision] = cloud.collect({})
    assert decision.reason is Reason.REVOKED and not decision.table.hosts
    as_ring = ring_conversion.to_ring(decision.table, 6)
    assert (
        ring_conversion.from_ring(hash_ring.decode(hash_ring.encode(as_ring), "table"))
        == decision.table
    )


def test_table_of_another_instance_is_continued():
    cloud = Cloud(3)
    cloud.collect({"h1": 1.0})
    other = decider.VNodeTable(
        {
            h: p._replace(names=vnode.first_vnodes(h, 50))
            for h, p in cloud.decider.table.hosts.items()
        }
    )
    cloud.decider.load_table(other)
    assert cloud.collect({"h1": 1.0}) == [], "its overload was answered by the other one's table"
    assert cloud.counts() == {"h1": 50, "h2": 50, "h3": 50}


SHARES = st.dictionaries(
    st.sampled_from([f"h{n}" for n in range(1, 7)]),
    st.sampled_from([0.0, 0.3, 0.7, 0.9, 1.0, 40.0]),
)


@settings(max_examples=60)
@given(st.integers(1, 6), st.lists(st.tuples(SHARES, st.sets(st.sampled_from(["h1", "h2"])))))
def test_tables_are_complete_and_change_only_with_a_decision(hosts, rounds):
    cloud = Cloud(hosts)
    for shares, drained in rounds:
        old = cloud.decider.table
        made = cloud.collect(shares, drained=drained)
        new = cloud.decider.table
        assert bool(made) == (new != old)
        if made:
            assert made[0].moved == remap.count_moved(old.vnodes_by_host(), new.vnodes_by_host())
        for host, count in cloud.counts().items():
            assert (count == 0) == (host in drained)
        as_ring = ring_conversion.to_ring(new, 5)
        assert (
            ring_conversion.from_ring(hash_ring.decode(hash_ring.encode(as_ring), "table")) == new
        )


@pytest.mark.parametrize("hosts", [400])
def test_large_cloud_fits_a_table(hosts):
    cloud = Cloud(hosts)
    [decision] = cloud.collect(dict.fromkeys(cloud.hosts[::3], 0.95), times=2)
    assert decision.reason is Reason.OVERLOAD
    encoded = hash_ring.encode(ring_conversion.to_ring(decision.table, 2))
    assert len(encoded) < hash_ring.MAX_FILE_BYTES


def test_v_nodes_per_host_shrink_before_a_table_is_too_large():
    cloud = Cloud(2, max_vnodes=250)
    cloud.hosts.append("h3")
    cloud.collect({}, times=3)
    published = ring_conversion.to_ring(cloud.decider.table, 1)
    assert [host.vnodes for host in published.hosts] == [83, 83, 83]
