# SPDX-License-Identifier: Apache-2.0
import collections
import json
import pathlib
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_common import errors
from acstor_common import ids
from acstor_common import ring

GOLDEN = pathlib.Path(__file__).parents[2] / "data" / "ring-v1.json"
IMAGE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")


def make_ring(*vnodes: int) -> ring.Ring:
    return ring.Ring(
        1,
        tuple(
            ring.RingHost(f"h{i}", f"10.0.{i >> 8}.{i & 255}:7201", n) for i, n in enumerate(vnodes)
        ),
    )


def homes(of: ring.Ring, count: int, image_id: ids.ImageId = IMAGE) -> list[str]:
    return [of.home(image_id, segment_no) for segment_no in range(count)]


def table(**changes) -> bytes:
    host = {"host": "h1", "address": "10.0.0.1:7201", "vnodes": 100}
    fields = {"version": 1, "epoch": 7, "hosts": [host | changes.pop("host", {})]}
    return json.dumps(fields | changes).encode()


def test_golden_table_gives_the_owners_that_are_committed():
    golden = json.loads(GOLDEN.read_bytes())
    of = ring.decode(json.dumps(golden["table"]).encode(), "golden")
    for case in golden["owners"]:
        assert list(of.owners(case["image_id"], case["segment_no"])) == case["owners"]


@pytest.mark.parametrize("image_no", range(20))
def test_32_segments_on_16_equal_hosts_are_exactly_two_each(image_no):
    image_id = ids.ImageId(str(uuid.UUID(int=image_no)))
    counts = collections.Counter(homes(make_ring(*[100] * 16), 32, image_id))
    assert set(counts.values()) == {2} and len(counts) == 16


@pytest.mark.parametrize("prefix", [2**k for k in range(11)])
def test_shares_are_proportional_to_v_nodes_at_every_doubling(prefix):
    counts = collections.Counter(homes(make_ring(100, 200, 400), prefix))
    for number, weight in enumerate((1, 2, 4)):
        assert counts[f"h{number}"] <= -(-prefix * weight // 7)


def test_every_run_of_an_image_is_even():
    counts = collections.Counter(homes(make_ring(*[100] * 16), 4096)[2048:3072])
    assert set(counts.values()) == {64}


@given(st.lists(st.integers(1, 300), min_size=1, max_size=20), st.integers(0, 5000))
def test_owners_begin_with_the_home_and_name_every_host_once(vnodes, segment_no):
    of = make_ring(*vnodes)
    owners = of.owners(IMAGE, segment_no)
    assert owners[0] == of.home(IMAGE, segment_no)
    assert sorted(owners) == sorted(host.host for host in of.hosts)
    assert of.owners(IMAGE, segment_no, 3) == owners[:3]


def test_order_of_hosts_in_the_table_does_not_matter():
    of = make_ring(50, 100, 200, 10)
    shuffled = ring.Ring(1, of.hosts[::-1])
    assert homes(of, 1024) == homes(shuffled, 1024)


def test_load_of_a_dead_home_is_spread_over_the_others():
    of = make_ring(*[100] * 16)
    seconds = [of.owners(IMAGE, s)[1] for s in range(1024) if of.home(IMAGE, s) == "h3"]
    assert max(collections.Counter(seconds).values()) < len(seconds) / 3


def test_host_that_leaves_moves_little_more_than_twice_its_share():
    before = make_ring(*[100] * 16)
    moved = 0
    for number in range(8):
        image_id = ids.ImageId(str(uuid.UUID(int=number)))
        after = ring.Ring(2, tuple(h for h in before.hosts if h.host != f"h{number}"))
        pairs = zip(homes(before, 1024, image_id), homes(after, 1024, image_id), strict=True)
        moved += sum(old != new for old, new in pairs)
    assert moved / 8 <= 2.5 * 64


def test_ring_forgets_the_runs_it_used_least_recently():
    of = make_ring(1, 1)
    for image_no in range(ring.RUNS_CACHED + 10):
        of.home(ids.ImageId(str(uuid.UUID(int=image_no))), 0)
    assert len(of._runs) == ring.RUNS_CACHED


def test_empty_ring_has_no_owners():
    of = ring.decode(table(hosts=[]), "empty")
    assert of.owners(IMAGE, 0) == () and of.home(IMAGE, 0) is None


def test_ring_knows_the_addresses_of_its_hosts():
    of = ring.decode(table(host={"address": "[::1]:7201"}), "t")
    assert of.address_of("h1") == "[::1]:7201" and "h1" in of and "h2" not in of


def test_encoded_ring_decodes_to_the_same_table():
    of = make_ring(3, 1, 2)
    again = ring.decode(ring.encode(of), "again")
    assert (again.epoch, again.hosts) == (of.epoch, of.hosts)


TWINS = [{"host": "a", "address": "1.1.1.1:1", "vnodes": 1}] * 2
SAME_ADDRESS = [{"host": name, "address": "1.1.1.1:1", "vnodes": 1} for name in "ab"]
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
        (b" " * (ring.MAX_FILE_BYTES + 1), "longer"),
        (b"[]", "Expected `object`"),
        (table(version=2), "version 2"),
        (table(version="1"), "version"),
        (table(epoch=-1), "epoch"),
        (table(epoch=1.5), "epoch"),
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
        (table(hosts=TWINS), "'a' is there twice"),
        (table(hosts=SAME_ADDRESS), "twice"),
        (table(hosts=CROWD), "in all"),
    ],
)
def test_bad_table_is_refused_with_its_name_and_what_is_wrong(data, named):
    with pytest.raises(errors.RingFormatError) as caught:
        ring.decode(data, "/etc/acstor/ring.json")
    assert "/etc/acstor/ring.json" in str(caught.value) and named in str(caught.value)
