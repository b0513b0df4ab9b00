# SPDX-License-Identifier: Apache-2.0
import collections
import itertools
import json
import pathlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_common import errors
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.ring import location
from acstor_common.ring import location_policies
from acstor_common.ring import vnode

DATA = pathlib.Path(__file__).parents[2] / "data"
CIDS = [ids.cid_of(b"chunk %d" % n) for n in range(16_384)]


def make_ring(*vnodes: int) -> hash_ring.Ring:
    return hash_ring.Ring(
        1,
        tuple(
            hash_ring.RingHost(f"h{i}", f"10.0.{i >> 8}.{i & 255}:7201", n)
            for i, n in enumerate(vnodes)
        ),
    )


def homes(of: hash_ring.Ring) -> list[str]:
    return [of.owners_of(cid, 1)[0] for cid in CIDS]


def without(of: hash_ring.Ring, name: str) -> hash_ring.Ring:
    return hash_ring.Ring(of.epoch + 1, tuple(host for host in of.hosts if host.host != name))


def table(**changes) -> bytes:
    host = {"host": "h1", "address": "10.0.0.1:7201", "vnodes": 100}
    fields = {"version": 1, "epoch": 7, "hosts": [host | changes.pop("host", {})]}
    return json.dumps(fields | changes).encode()


def named(*owned) -> bytes:
    hosts = [
        {"host": f"h{i}", "address": f"10.0.0.{i}:7201", "vnodes": names}
        for i, names in enumerate(owned, 1)
    ]
    return table(hosts=hosts)


@pytest.mark.parametrize("name", ["ring-v1.json", "ring-v1-names.json"])
def test_golden_table_gives_the_recorded_owners(name):
    golden = json.loads((DATA / name).read_bytes())
    of = hash_ring.decode(json.dumps(golden["table"]).encode(), "golden")
    for case in golden["owners"]:
        cid = ids.Cid(bytes.fromhex(case["cid"]))
        assert list(of.owners_of(cid)) == case["owners"], case["cid"]


def test_golden_table_with_locations_gives_the_recorded_homes():
    golden = json.loads((DATA / "ring-v1-locations.json").read_bytes())
    of = hash_ring.decode(json.dumps(golden["table"]).encode(), "golden")
    assert json.loads(hash_ring.encode(of)) == golden["table"]
    for case in golden["homes"]:
        cid = ids.Cid(bytes.fromhex(case["cid"]))
        near, outer = of.group_of(case["src"]), of.outer_group_of(case["src"])
        assert list(near.owners_of(cid)) == case["near"]
        assert outer.owners_of(cid, 1)[0] == case["outer_home"]


def test_order_of_hosts_in_the_table_does_not_matter():
    of = make_ring(50, 100, 200, 10)
    shuffled = hash_ring.Ring(1, of.hosts[::-1])
    assert [of.owners_of(cid) for cid in CIDS[:500]] == [
        shuffled.owners_of(cid) for cid in CIDS[:500]
    ]


def test_home_depends_only_on_the_first_8_bytes_of_the_cid():
    of = make_ring(*[100] * 16)
    for cid in CIDS[:500]:
        assert of.owners_of(cid) == of.owners_of(ids.Cid(cid[:8] + bytes(24)))


def test_shares_of_hosts_follow_their_v_nodes():
    """With 100 v-nodes the points themselves spread by 10 % (one standard deviation)."""
    counts = collections.Counter(homes(make_ring(*[100] * 16)))
    shares = [count * 16 / len(CIDS) for count in counts.values()]
    assert len(shares) == 16
    assert 0.7 < min(shares) and max(shares) < 1.4


def test_v_node_weights_1_2_and_4_give_shares_1_2_and_4():
    counts = collections.Counter(homes(make_ring(100, 200, 400)))
    for name, weight in (("h0", 1), ("h1", 2), ("h2", 4)):
        assert 0.8 < counts[name] * 7 / (weight * len(CIDS)) < 1.2


@given(st.lists(st.integers(1, 300), min_size=1, max_size=20), st.binary(min_size=32, max_size=32))
def test_owners_list_every_host_once_up_to_the_limit(vnodes, cid):
    of = make_ring(*vnodes)
    owners = of.owners_of(ids.Cid(cid))
    assert sorted(owners) == sorted(host.host for host in of.hosts)
    assert of.owners_of(ids.Cid(cid), 3) == owners[:3]
    assert of.owners_of(ids.Cid(cid), 0) == ()


def test_leaving_host_moves_only_its_own_share():
    before = make_ring(*[100] * 16)
    old = homes(before)
    moved = 0
    for host in before.hosts:
        new = homes(without(before, host.host))
        assert all(a == host.host for a, b in zip(old, new, strict=True) if a != b)
        moved += sum(a != b for a, b in zip(old, new, strict=True))
    assert moved == len(CIDS)  # each content once: on average 1.0 times a host's even share


def test_next_owner_takes_over_when_the_home_leaves():
    before = make_ring(*[100] * 16)
    after = without(before, "h3")
    for cid in CIDS[:1000]:
        left = tuple(host for host in before.owners_of(cid) if host != "h3")
        assert after.owners_of(cid) == left


def test_growing_weight_moves_contents_only_to_its_host():
    before = homes(make_ring(*[100] * 16))
    after = homes(make_ring(110, *[100] * 15))
    gained = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(gained) == {"h0"}
    assert len(gained) < 0.02 * len(CIDS)


def test_load_of_a_dead_home_is_spread_over_the_others():
    of = make_ring(*[100] * 16)
    owners = [of.owners_of(cid, 2) for cid in CIDS]
    seconds = collections.Counter(second for home, second in owners if home == "h3")
    assert len(seconds) >= 12  # of 15
    assert max(seconds.values()) < seconds.total() / 5


def test_owners_among_10_000_hosts_are_found_quickly():
    of = make_ring(*[20] * 10_000)
    began = time.process_time()
    owners = [of.owners_of(cid, 4) for cid in CIDS]
    assert time.process_time() - began < 2.0  # a scan of all points takes 20 s
    assert {len(set(hosts)) for hosts in owners} == {4}


def test_empty_ring_has_no_owners():
    of = hash_ring.decode(table(hosts=[]), "empty")
    assert of.owners_of(CIDS[0]) == () and of.owners_of(CIDS[0], 1) == ()


def test_ring_knows_the_addresses_of_its_hosts():
    of = hash_ring.decode(table(host={"address": "[::1]:7201"}), "t")
    assert of.address_of("h1") == "[::1]:7201" and "h1" in of and "h2" not in of


def test_encoded_ring_decodes_to_the_same_table():
    of = make_ring(3, 1, 2)
    again = hash_ring.decode(hash_ring.encode(of), "again")
    assert (again.epoch, again.hosts) == (of.epoch, of.hosts)


# Locations


PLACES = ["s1/p1/r1", "s1/p1/r2", "s1/p2/r1", "s2/p1/r1"]


@pytest.mark.parametrize("segment_chunks", [1, 2, 16])
def test_segment_length_is_published_and_equal_in_all_groups(segment_chunks):
    of = located(2)
    made = hash_ring.Ring(of.epoch, of.hosts, 2, segment_chunks=segment_chunks)
    read = hash_ring.decode(hash_ring.encode(made), "a table")
    assert read.segment_chunks == segment_chunks
    assert (b"segment_chunks" in hash_ring.encode(made)) == (segment_chunks > 1)
    assert {read.group_of(ids.HostId(h.host)).segment_chunks for h in of.hosts} == {segment_chunks}


@pytest.mark.parametrize("segment_chunks", [0, 3, 12, 32])
def test_segment_length_must_be_a_power_of_two(segment_chunks):
    with pytest.raises(ValueError, match="segments of"):
        hash_ring.Ring(1, (), segment_chunks=segment_chunks)
    table = hash_ring.encode(hash_ring.Ring(1, ())).replace(
        b"}", b',"segment_chunks":%d}' % segment_chunks
    )
    with pytest.raises(errors.RingFormatError, match="segment"):
        hash_ring.decode(table, "a table")


def located(
    threshold: int | None = None, outer: int | None = None, count: int = 12
) -> hash_ring.Ring:
    placed = (
        hash_ring.RingHost(f"h{i}", f"10.0.0.{i}:7201", 50, PLACES[i % len(PLACES)])
        for i in range(count)
    )
    return hash_ring.Ring(1, tuple(placed), threshold, outer)


def algorithm_1(of: hash_ring.Ring, cid: ids.Cid, src: str, threshold: int) -> str:
    """Wu et al. 2017, Algorithm 1, lines 7 to 14, literally."""
    where = {host: location.parse(text) for host, text in of.host_locations().items()}
    node_list = of
    while True:
        dest = node_list.owners_of(cid, 1)[0]
        if location.distance(where[src], where[dest]) < threshold:
            return dest
        node_list = without(node_list, dest)


@pytest.mark.parametrize("threshold", range(1, 6))
def test_home_in_a_group_matches_algorithm_1(threshold):
    of = located(threshold)
    for cid in CIDS[:60]:
        for src in ("h0", "h3", "h6"):
            home = of.group_of(src).owners_of(cid, 1)[0]
            assert home == algorithm_1(of, cid, src, threshold)


@pytest.mark.parametrize("threshold", [1, 2, 3, 4, None])
def test_ring_within_has_the_hosts_nearer_than_the_far_host(threshold):
    of, levels = located(threshold), {h.host: location.parse(h.location) for h in located(1).hosts}
    for host, far in itertools.permutations(levels, 2):
        most = max(1, location.distance(levels[host], levels[far]))
        near = {h for h in levels if location.distance(levels[host], levels[h]) < most}
        assert {h.host for h in of.ring_within(host, far).hosts} == near
        same = {h for h in levels if of.group_location(h) == of.group_location(host)}
        assert {h.host for h in of.group_of(host).hosts} == same


@pytest.mark.parametrize(
    ("threshold", "near"),
    [
        (1, {"h0", "h4", "h8"}),
        (2, {"h0", "h4", "h8", "h1", "h5", "h9"}),
        (3, {f"h{n}" for n in range(12) if n % 4 != 3}),
        (4, {f"h{n}" for n in range(12)}),
        (None, {f"h{n}" for n in range(12)}),
    ],
)
def test_group_has_the_hosts_nearer_than_the_threshold(threshold, near):
    of = located(threshold)
    assert {host.host for host in of.group_of("h0").hosts} == near
    for member in near:  # all members see the same group and find the same homes
        assert of.group_of(member) is of.group_of("h0")


def test_group_of_an_unknown_host_is_the_whole_ring():
    of = located(1)
    assert of.group_of("stranger") is of


def test_outer_group_exists_only_with_both_thresholds():
    assert located().outer_group_of("h0") is None
    assert located(1).outer_group_of("h0") is None
    outer = located(1, 3).outer_group_of("h0")
    assert outer is not None and len(outer.hosts) == 9


def test_hosts_without_locations_form_one_group():
    of = hash_ring.Ring(1, make_ring(10, 10, 10).hosts, 1, 2)
    assert of.group_of("h1") is of and of.outer_group_of("h1") is of


@pytest.mark.parametrize(("threshold", "outer"), [(None, None), (2, None), (1, 4)])
def test_located_ring_decodes_to_the_same_table(threshold, outer):
    of = located(threshold, outer)
    again = hash_ring.decode(hash_ring.encode(of), "again")
    assert (again.hosts, again.threshold, again.outer_threshold) == (of.hosts, threshold, outer)


@given(
    st.dictionaries(
        st.sampled_from(["s1", "s1/p1", "s1/p1/r1", "s1/p1/r2", "s2", "s1/p2/r1"]),
        st.integers(1, 100),
    )
)
def test_shares_of_places_do_not_change_owners_within_groups(given_shares):
    places = {
        place: location_policies.LocationPolicy(share) for place, share in given_shares.items()
    }
    plain = located(1, 4)
    of = hash_ring.Ring(1, plain.hosts, 1, 4, {}, places)
    again = hash_ring.decode(hash_ring.encode(of), "again")
    assert again.policies == places
    for host in ("h0", "h1", "h2", "h3"):
        for cid in CIDS[:20]:
            near = plain.group_of(host).owners_of(cid)
            assert of.group_of(host).owners_of(cid) == again.group_of(host).owners_of(cid) == near
            assert of.outer_group_of(host).owners_of(cid) == again.outer_group_of(host).owners_of(
                cid
            )


def test_smaller_share_only_moves_contents_away():
    hosts = located(1, 4).hosts
    of_share = []
    for share in (100, 60, 20, 1):
        places = {"s1/p1/r1": location_policies.LocationPolicy(share)}
        of_share.append(homes(hash_ring.Ring(1, hosts, 1, 4, {}, places)))
    for more, less in itertools.pairwise(of_share):
        for before, after in zip(more, less, strict=True):
            assert before == after or PLACES[int(before[1:]) % 4] == "s1/p1/r1"
    slow = [sum(PLACES[int(home[1:]) % 4] == "s1/p1/r1" for home in found) for found in of_share]
    assert slow == sorted(slow, reverse=True) and slow[-1] < slow[0] / 5


def test_absent_fields_are_not_encoded():
    assert set(json.loads(hash_ring.encode(make_ring(1)))) == {"version", "epoch", "hosts"}
    assert "location" not in json.loads(hash_ring.encode(make_ring(1)))["hosts"][0]


def test_revoked_hosts_decode_to_the_same_table():
    of = hash_ring.Ring(5, make_ring(1).hosts, revoked={"h9": 1_700_000_000})
    assert hash_ring.decode(hash_ring.encode(of), "again").revoked == {"h9": 1_700_000_000}
    assert hash_ring.decode(hash_ring.encode(make_ring(1)), "again").revoked == {}


def test_small_group_among_10_000_hosts_is_found_quickly():
    placed = tuple(
        hash_ring.RingHost(f"h{i}", f"10.0.{i >> 8}.{i & 255}:7201", 20, f"pod{i // 40}")
        for i in range(10_000)
    )
    of = hash_ring.Ring(1, placed, 1)
    began = time.process_time()
    owners = [of.group_of("h7").owners_of(cid, 4) for cid in CIDS]
    assert time.process_time() - began < 2.0
    assert {host for hosts in owners for host in hosts} <= {f"h{i}" for i in range(40)}


TWINS = [{"host": "a", "address": "1.1.1.1:1", "vnodes": 1}] * 2
SAME_ADDRESS = [{"host": name, "address": "1.1.1.1:1", "vnodes": 1} for name in "ab"]
UNEVEN = [
    {"host": "a", "address": "1.1.1.1:1", "vnodes": 1, "location": "x/y"},
    {"host": "b", "address": "1.1.1.2:1", "vnodes": 1, "location": "x"},
]
CROWD = [
    {"host": f"h{i}", "address": f"1.1.{i >> 8}.{i & 255}:1", "vnodes": 10_000} for i in range(105)
]


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", "truncated"),
        (b"{not json", "byte 1"),
        (b"\xff\xfe", "malformed"),
        (b"[" * 100_000, ""),
        (b" " * (hash_ring.MAX_FILE_BYTES + 1), "longer"),
        (b"[]", "Expected `object`"),
        (table(version=2), "version 2 is unknown, 1 is expected"),
        (named({"h1": "0-99"}, {"h1": "7"}), "h1#7 appears twice: at h1 and at h2"),
        (named({"h1": "1-0"}), "ascending"),
        (named({"h1": "3,2"}), "ascending"),
        (named({"h1": "0-1048576"}), "ascending"),
        (named({"h1": "0-"}), "'0-'"),
        (named({"h1": ""}), "''"),
        (named({"h1": 5}), "vnodes"),
        (named({"no/slash": "0"}), "no/slash"),
        (named({"h1": "0-10000"}), "10001 v-nodes, 0 to 10000"),
        (named({"h1": "0-1048575"}), "10001 v-nodes, 0 to 10000"),
        (table(threshold=0), "threshold"),
        (table(threshold=hash_ring.MAX_THRESHOLD + 1), "threshold"),
        (table(threshold=1.5), "threshold"),
        (table(threshold=2, outer_threshold=2), "outer_threshold 2 is not above"),
        (table(outer_threshold=2), "outer_threshold 2 is not above"),
        (table(places={"": {"share": 5}}), "a place without a name"),
        (table(places={"p//r": {"share": 5}}), "not a location"),
        (table(places={"p": {"share": 0}}), "share"),
        (table(places={"p": {"share": 101}}), "share"),
        (table(places={"p": {"shares": 1}}), "shares"),
        (table(threshold=2, places={"p": {"outer_threshold": 2}}), "p: outer_threshold 2 is not"),
        (table(places={"p": {"outer_threshold": 2}}), "p: outer_threshold 2 is not above"),
        (table(places={"p": {"outer_threshold": 10}}), "outer_threshold"),
        (table(host={"location": "a//b"}), "'a//b'"),
        (table(host={"location": "/a"}), "not a location"),
        (table(host={"location": "a b"}), "not a location"),
        (table(host={"location": "a" * 256}), "not a location"),
        (table(host={"location": "/".join("abcdefghi")}), "not a location"),
        (table(hosts=UNEVEN), "b: location 'x' has more or fewer levels than 'x/y' of"),
        (table(version="1"), "version"),
        (table(epoch=-1), "epoch"),
        (table(epoch=1.5), "epoch"),
        (table(epoch=2**53), "epoch"),
        (table(revoked={"h1": -1}), "revoked"),
        (table(revoked={"h1": 2**53}), "revoked"),
        (table(revoked={"no/slash": 1}), "no/slash"),
        (table(revoked={f"h{n}": 1 for n in range(hash_ring.MAX_REVOKED + 1)}), "revoked"),
        (table(surprise=1), "surprise"),
        (table(host={"vnodes": 0}), "vnodes"),
        (table(host={"vnodes": 10_001}), "vnodes"),
        (table(host={"host": "no spaces"}), "no spaces"),
        (table(host={"host": ""}), "host id"),
        (table(host={"address": "10.0.0.1"}), "10.0.0.1"),
        (table(host={"address": "10.0.0.1:0"}), "address"),
        (table(host={"address": "10.0.0.1:65536"}), "address"),
        (table(host={"address": "10.0.0.256:1"}), "address"),
        (table(host={"address": "::1:7201"}), "address"),
        (table(host={"address": "[::1%eth0]:7201"}), "address"),
        (table(host={"address": "host.example:7201"}), "address"),
        (table(hosts=TWINS), "'a' appears twice"),
        (table(hosts=SAME_ADDRESS), "twice"),
        (table(hosts=CROWD), "in all"),
    ],
)
def test_invalid_table_is_refused_with_its_name_and_the_fault(data, named):
    with pytest.raises(errors.RingFormatError) as caught:
        hash_ring.decode(data, "/etc/acstor/ring.json")
    assert "/etc/acstor/ring.json" in str(caught.value) and named in str(caught.value)


def test_moved_v_node_moves_only_its_own_contents():
    before = make_ring(100, 100, 100)
    moved = vnode.VNode(ids.HostId("h0"), 7)
    own = {host.host: set(host.iter_vnodes()) for host in before.hosts}
    own["h0"].remove(moved)
    own["h1"].add(moved)
    after = hash_ring.Ring(
        2,
        tuple(
            hash_ring.named_host(ids.HostId(h.host), h.address, frozenset(own[h.host]))
            for h in before.hosts
        ),
    )
    points = sorted(vnode.point_of(name) for host in before.hosts for name in host.iter_vnodes())
    arc = points[points.index(vnode.point_of(moved)) - 1], vnode.point_of(moved)
    changes = 0
    for cid, (old, new) in zip(CIDS, zip(homes(before), homes(after), strict=True), strict=True):
        is_inside = arc[0] < ids.oid_of(cid) <= arc[1]
        assert (old, new) == (("h0", "h1") if is_inside else (old, old))
        changes += is_inside
    assert changes


def test_host_without_v_nodes_is_on_the_ring_and_owns_nothing():
    of = hash_ring.decode(named({"h1": "0-9"}, {}), "table")
    assert "h2" in of and of.address_of(ids.HostId("h2")) == "10.0.0.2:7201"
    assert {of.owners_of(cid) for cid in CIDS[:200]} == {("h1",)}
    assert hash_ring.decode(named({}), "table").owners_of(CIDS[0]) == ()


def test_v_nodes_are_encoded_by_name_only_if_needed():
    own = vnode.first_vnodes(ids.HostId("h1"), 100)
    for names, kind in (
        (own, int),
        (own - vnode.first_vnodes(ids.HostId("h1"), 1), dict),
        (frozenset(), dict),
    ):
        host = hash_ring.named_host(ids.HostId("h1"), "10.0.0.1:7201", names, "pod1")
        written = hash_ring.encode(hash_ring.Ring(5, (host,)))
        assert type(json.loads(written)["hosts"][0]["vnodes"]) is kind
        assert frozenset(hash_ring.decode(written, "table").hosts[0].iter_vnodes()) == names


def test_hosts_at_an_address_are_counted_in_normal_form():
    addresses = ["10.0.0.1:7201", "10.0.0.1:7202", "[FD00:0::1]:7201"]
    made = hash_ring.Ring(
        1, tuple(hash_ring.RingHost(f"h{n}", a, 1) for n, a in enumerate(addresses))
    )
    assert [made.hosts_at(ip) for ip in ("10.0.0.1", "fd00::1", "10.0.0.2")] == [2, 1, 0]
