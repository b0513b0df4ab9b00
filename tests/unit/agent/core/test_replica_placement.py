# SPDX-License-Identifier: Apache-2.0
"""Shares of images: each chunk has two owners, also when hosts join or leave."""

import array
import copy
import random
import tracemalloc

import pytest

from acstor_agent.core.images import replica_placement
from acstor_agent.engine import identity
from acstor_common.formats import chunk_map
from acstor_common.formats import layout
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.model import segments
from acstor_common.ring import hash_ring
from acstor_policies import place_identity
from tests.fakes import chunk_maps
from tests.fakes import one_host

CHUNK = one_host.CHUNK
DATA = one_host.image_bytes(300 * CHUNK) + bytes(5 * CHUNK)
DATA += DATA[: 20 * CHUNK] + one_host.image_bytes(99, seed=2)
MAP = chunk_map.ChunkMap.parse(one_host.map_of(DATA), "a map")
CONTENTS = {MAP.cid_of(number) for number in range(len(MAP))} - {ids.ZERO_CID}


def table_of(*names: str, epoch: int = 1, locations: dict[str, str] | None = None, **options):
    places = locations or {}
    made = [
        hash_ring.RingHost(name, f"10.0.0.{number}:7201", 100, places.get(name, ""))
        for number, name in enumerate(names, 1)
    ]
    return hash_ring.Ring(epoch, tuple(made), **options)


def kept(table: hash_ring.Ring, naming: identity.Identity | None = None) -> dict[str, set[ids.Cid]]:
    """Return the CIDs that each host keeps."""
    named = naming or identity.ByContent()
    found = {}
    for host in table.hosts:
        mine = replica_placement.ReplicaPlacement(
            ids.HostId(host.host),
            one_host.OneTable(table),
            named.oid_of,
            is_by_place=named.is_by_place,
        )
        found[host.host] = set(mine.part_of(MAP, mine.share_table()).list_contents())
    return found


def copies_of(found: dict[str, set[ids.Cid]]) -> set[int]:
    return {sum(cid in one for one in found.values()) for cid in CONTENTS}


@pytest.mark.parametrize("count", [2, 3, 5, 16])
def test_every_chunk_is_kept_by_its_home_and_the_next_owner(count):
    table = table_of(*(f"h{number}" for number in range(count)))
    found = kept(table)
    assert copies_of(found) == {2}
    for cid in CONTENTS:
        owners = table.owners_of(cid)[:2]
        assert {host for host, cids in found.items() if cid in cids} == set(owners)


def test_single_host_keeps_one_copy_of_every_chunk():
    table = table_of("h1")
    assert kept(table) == {"h1": CONTENTS}
    assert replica_placement.copy_count(table, ids.HostId("h1")) == 1


def test_host_without_v_nodes_has_no_share_and_counts_as_no_copy():
    idle = hash_ring.named_host(ids.HostId("h2"), "10.0.0.2:7201", frozenset())
    table = hash_ring.Ring(1, (*table_of("h1").hosts, idle))
    assert kept(table) == {"h1": CONTENTS, "h2": set()}
    assert replica_placement.copy_count(table, ids.HostId("h2")) == 1


def test_host_that_is_not_on_the_table_keeps_every_chunk():
    mine = replica_placement.ReplicaPlacement(
        ids.HostId("h9"), one_host.OneTable(table_of("h1", "h2")), identity.ByContent().oid_of
    )
    assert mine.share_table() is None
    assert set(mine.part_of(MAP, None).list_contents()) == CONTENTS
    nobody = replica_placement.ReplicaPlacement(
        ids.HostId("h9"), one_host.OneTable(hash_ring.Ring(0, ())), identity.ByContent().oid_of
    )
    assert nobody.share_table() is None


def test_chunks_of_a_departed_host_are_taken_over_without_other_moves():
    before, after = kept(table_of("h1", "h2", "h3", "h4")), kept(table_of("h1", "h2", "h4"))
    assert copies_of(after) == {2}
    gained = {host: after[host] - before[host] for host in after}
    assert all(before[host] <= after[host] for host in after)
    assert set().union(*gained.values()) == before["h3"]  # exactly the chunks that it had
    assert sum(map(len, gained.values())) == len(before["h3"])


def test_joining_host_takes_over_at_most_one_copy_of_a_chunk():
    before, after = kept(table_of("h1", "h2", "h3")), kept(table_of("h1", "h2", "h3", "h4"))
    assert copies_of(after) == {2}
    for cid in CONTENTS:
        assert sum(cid in before[host] and cid in after[host] for host in before) >= 1


def test_each_group_of_hosts_keeps_its_own_copies():
    places = {"h1": "a/1", "h2": "a/2", "h3": "b/1", "h4": "b/2"}
    found = kept(table_of(*places, locations=places, threshold=2))
    assert copies_of({host: found[host] for host in ("h1", "h2")}) == {2}
    assert copies_of({host: found[host] for host in ("h3", "h4")}) == {2}


def test_by_place_chunks_are_kept_by_the_owners_of_each_place():
    table = table_of("h1", "h2", "h3", "h4")
    naming = place_identity.ByPlace()
    found = kept(table, naming)
    for number in range(len(MAP)):
        cid = MAP.cid_of(number)
        if cid != ids.ZERO_CID:
            oid = naming.oid_of(MAP.image_id, number * CHUNK, cid)
            assert all(cid in found[host] for host in table.owners_at(oid, 2))


@pytest.mark.parametrize("length", [2, 16])
@pytest.mark.parametrize("naming", [identity.ByContent(), place_identity.ByPlace()])
def test_segments_are_kept_by_the_owners_of_each_segment(naming, length):
    table = table_of("h1", "h2", "h3", "h4", segment_chunks=length)
    found, expected = kept(table, naming), {host.host: set() for host in table.hosts}
    for first in range(0, len(MAP), length):
        cids = MAP.cids_between(first, min(first + length, len(MAP)))
        places = range(first * CHUNK, (first + len(cids)) * CHUNK, CHUNK)
        oids = naming.oids_of(MAP.image_id, places, cids)
        names = segments.names(cids, oids, length)
        for cid in set(cids) - {ids.ZERO_CID}:
            for host in table.owners_at(names[0], 2):
                expected[host].add(cid)
    assert found == expected and copies_of(found) >= {2}


def test_shares_add_up_to_the_bytes_of_all_copies():
    table = table_of("h1", "h2", "h3")
    parts = [
        replica_placement.ReplicaPlacement(
            ids.HostId(name), one_host.OneTable(table), identity.ByContent().oid_of
        ).part_of(MAP, table)
        for name in ("h1", "h2", "h3")
    ]
    [image_bytes] = {part.image_bytes for part in parts}
    assert sum(part.total_bytes for part in parts) == 2 * image_bytes == 2 * (300 * CHUNK + 99)
    assert replica_placement.whole_image(MAP).image_bytes == image_bytes


def test_share_agrees_with_the_owners_of_each_chunk():
    """The search by ranges of the index agrees with a look-up of each chunk."""
    rng = random.Random(42)
    for count, hosts in ((1, 1), (2, 3), (255, 4), (257, 16), (8200, 3)):
        table = table_of(*(f"h{number}" for number in range(hosts)))
        # Heads that are the same, the ends of the ring, zeros and repeated contents are among them.
        drawn = [rng.randbytes(30) + b"\0\0" for _ in range(count)]
        drawn = [
            bytes(rng.randint(0, 4) or 4) + cid[4:] if n % 5 == 0 else cid
            for n, cid in enumerate(drawn)
        ]
        for n in range(1, count, 3):  # at a point of the ring, and next to it
            point = min(table.last_with_same_owners(rng.getrandbits(64)) + n % 2, (1 << 64) - 1)
            drawn[n] = point.to_bytes(8, "big") + drawn[n][8:]
        drawn[0] = b"\xff" * 31 + b"\0"
        cids = [cid[:32].ljust(32, b"\0") for cid in rng.choices([*drawn, ids.ZERO_CID], k=count)]
        cids[-1] = ids.cid_of(b"of a short chunk")
        cut = geometry.Geometry(count * CHUNK - 5, CHUNK)
        of_image = chunk_map.ChunkMap.parse(chunk_maps.made(MAP.image_id, cut, cids), "a map")
        firsts: dict[bytes, int] = {}
        for number, cid in enumerate(cids):
            firsts.setdefault(cid, number)
        firsts.pop(ids.ZERO_CID, None)
        whole = replica_placement.whole_image(of_image)
        assert list(whole.numbers) == sorted(firsts.values())
        for host in table.hosts:
            mine = replica_placement.ReplicaPlacement(
                ids.HostId(host.host), one_host.OneTable(table), ids_only
            )
            part = mine.part_of(of_image, table)
            wanted = {
                number for cid, number in firsts.items() if host.host in table.owners_of(cid, 2)
            }
            assert list(part.numbers) == sorted(wanted)
            assert part.total_bytes == sum(map(cut.chunk_length, wanted))
            assert (
                part.image_bytes == whole.total_bytes == sum(map(cut.chunk_length, whole.numbers))
            )


def ids_only(_image_id, _offset, _cid):
    raise AssertionError("no name is made of each chunk")


def test_share_of_a_large_image_takes_a_few_bytes_for_each_chunk():
    chunks = 1 << 14
    cids = (ids.cid_of(b"%d" % number) for number in range(chunks))
    made = chunk_maps.made(MAP.image_id, geometry.Geometry(chunks * CHUNK, CHUNK), cids)
    of_image = chunk_map.ChunkMap.parse(made, "a map")
    table = table_of("h1", "h2", "h3")
    for naming in (identity.ByContent(), place_identity.ByPlace()):
        mine = replica_placement.ReplicaPlacement(
            ids.HostId("h1"),
            one_host.OneTable(table),
            naming.oid_of,
            is_by_place=naming.is_by_place,
        )
        tracemalloc.start()
        try:
            mine.part_of(of_image, table)
            assert tracemalloc.get_traced_memory()[1] < 12 * chunks
        finally:
            tracemalloc.stop()


def test_union_of_parts_has_the_chunks_of_both_once():
    table = table_of("h1", "h2", "h3", "h4")
    parts = []
    for name in ("h1", "h2"):
        placement = replica_placement.ReplicaPlacement(
            ids.HostId(name), one_host.OneTable(table), identity.ByContent().oid_of
        )
        parts.append(placement.part_of(MAP, placement.share_table()))
    union = replica_placement.union_of_parts(*parts)
    assert list(union.numbers) == sorted({*parts[0].numbers, *parts[1].numbers})
    assert len(union.numbers) < len(parts[0].numbers) + len(parts[1].numbers)
    assert union.table is None


@pytest.mark.parametrize(("stored_bytes", "share"), [(0, 1 / 16), (1, 1 / 16), (1 << 50, 1.0)])
def test_share_of_stored_bytes_is_bounded_whatever_the_map_says(stored_bytes, share):
    part = replica_placement.ReplicaPart(MAP, None, array.array("I"), 1, image_bytes=1 << 20)
    stored = layout.StoredFile(layout.DiskFormat.QCOW2, stored_bytes)
    forged = copy.copy(MAP)
    forged.subject = MAP.subject._replace(stored=stored)
    assert part._replace(map=forged).stored_share == share
