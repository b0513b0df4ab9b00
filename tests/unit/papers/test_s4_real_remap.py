# SPDX-License-Identifier: Apache-2.0
"""Effects of a remap by the tables alone, and the hosts' sent chunks between two samples."""

from acstor_agent.engine import identity
from acstor_common.formats import chunk_map
from acstor_common.model import geometry
from acstor_common.ring import hash_ring
from acstor_policies import place_identity
from evaluation.papers import s4_real_remap
from tests.fakes import one_host

CHUNK = geometry.DEFAULT_CHUNK_BYTES
IDS = [f"7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a{n:02d}" for n in range(s4_real_remap.IMAGES)]


def table(epoch, first):
    hosts = [
        hash_ring.RingHost(f"h{n}", f"10.0.0.{n}:7201", first if n <= 2 else 100)
        for n in range(1, 9)
    ]
    return hash_ring.Ring(epoch, tuple(hosts))


def maps():
    return [
        chunk_map.ChunkMap.parse(one_host.map_of(data, image_id, CHUNK), "a map")
        for image_id, data in zip(IDS, s4_real_remap.contents(), strict=True)
    ]


def test_images_share_two_thirds_of_their_chunks_at_other_offsets():
    images = s4_real_remap.contents()
    chunks = [[data[at : at + CHUNK] for at in range(0, len(data), CHUNK)] for data in images]
    common = set.intersection(*map(set, chunks))
    assert len(common) == s4_real_remap.COMMON_CHUNKS
    assert {len(data) for data in images} == {48 * CHUNK}
    assert len({tuple(one.index(part) for part in common) for one in chunks}) == len(images)


def test_moved_chunk_is_a_miss_unless_its_new_home_has_the_content():
    found = {
        names: s4_real_remap.expected(maps(), [table(1, 100), table(2, 10)], names())
        for names in (place_identity.ByPlace, place_identity.ByOid, identity.ByContent)
    }
    place, oid, content = found.values()
    assert place["names"] == oid["names"] == content["names"] == 192
    assert content["contents"] == 96
    assert place["moved"] == oid["moved"] > 0
    assert place["moved_hits"] == 0 and place["misses_if_asked_once"] == place["moved"]
    assert oid["moved_hits"] > 0
    assert oid["misses_if_asked_once"] <= oid["moved"] - oid["moved_hits"]
    assert content["moved_hits"] == 0 and content["misses_if_asked_once"] < content["moved"]


def test_same_table_moves_nothing():
    found = s4_real_remap.expected(maps(), [table(1, 100)] * 2, place_identity.ByOid())
    assert found["moved"] == found["misses_if_asked_once"] == 0


def status(served, source, home):
    tally = {origin: {"bytes": 0} for origin in ("source", "home", "peer")}
    tally["home"]["bytes"] = home * CHUNK
    exchange = {"served_bytes": served * CHUNK, "source_bytes": source * CHUNK, "relayed_bytes": 0}
    return {"exchange": exchange, "fetched": tally}


def test_sent_chunks_are_the_growth_of_the_counters():
    before = [status(5, 5, 0), status(1, 0, 3)]
    after = [status(8, 7, 0), status(2, 0, 7)]
    found = s4_real_remap.given(before, after, busy=[0])
    assert found["served_chunks"] == 4 and found["busy_share"] == 0.75
    assert found["source_chunks"] == 2
    assert found["fetched_chunks"] == {"source": 0, "home": 4, "peer": 0}
