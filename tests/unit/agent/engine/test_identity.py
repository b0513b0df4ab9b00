# SPDX-License-Identifier: Apache-2.0
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.engine import chunk_ref
from acstor_agent.engine import identity
from acstor_common.formats import chunk_map
from acstor_common.model import ids
from acstor_policies import place_identity
from tests.fakes import one_host

OTHER = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a99")
CID, NEXT = ids.cid_of(b"one"), ids.cid_of(b"two")


def named(name):
    return chunk_ref.ChunkRef(CID, ids.Oid(name), OTHER, 0, 3)


@pytest.fixture
def by_place():
    return place_identity.ByPlace()


def test_oid_by_content_ignores_the_place_and_by_place_the_content(by_place):
    content = identity.ByContent()
    assert (
        content.oid_of(OTHER, 0, CID)
        == content.oid_of(one_host.IMAGE, 65536, CID)
        == ids.oid_of(CID)
    )
    assert by_place.oid_of(OTHER, 0, CID) == by_place.oid_of(OTHER, 0, NEXT)
    names = {
        by_place.oid_of(image, at, CID) for image in (OTHER, one_host.IMAGE) for at in (0, 65536)
    }
    assert len(names) == 4 and 0 not in names


def test_by_content_any_cached_chunk_may_be_served():
    content = identity.ByContent()
    content.record_names([named(1)])
    assert content.may_serve(CID, ids.Oid(2))
    assert content.drop_names(CID) == (ids.oid_of(CID),)


def test_by_place_a_chunk_is_served_only_under_names_it_arrived_under(by_place):
    for name in (1, 2, 2):
        by_place.record_names([named(name)])
    assert by_place.may_serve(CID, ids.Oid(1)) and by_place.may_serve(CID, ids.Oid(2))
    assert not by_place.may_serve(CID, ids.Oid(3)) and not by_place.may_serve(NEXT, ids.Oid(1))
    assert by_place.drop_names(CID) == (1, 2) and by_place.drop_names(CID) == ()
    assert not by_place.may_serve(CID, ids.Oid(1))


@pytest.mark.parametrize(
    ("named", "parent"), [(identity.ByContent(), 0), (place_identity.ByPlace(), 2)]
)
def test_chunks_of_an_image_are_found_by_their_names(named, parent):
    """Chunks 0 and 2 have the same content, chunk 1 is zeros."""
    data = b"x" * one_host.CHUNK + bytes(one_host.CHUNK) + b"x" * one_host.CHUNK
    image_map = chunk_map.ChunkMap.parse(one_host.map_of(data), "a map")
    index = named.make_index(image_map)
    assert index.parent_of(2) == parent
    oid = named.oid_of(image_map.image_id, 2 * one_host.CHUNK, image_map.cid_of(2))
    assert index.find_parent(oid) == parent
    assert index.find_parent(0) is None


@given(st.uuids(), st.integers(0, (1 << 64) - 1))
def test_by_place_an_oid_maps_back_to_its_offset(image, offset):
    image_id = ids.parse_image_id(str(image))
    oid = place_identity.ByPlace().oid_of(image_id, offset, CID)
    assert place_identity._Mixer(image_id).offset(oid) == offset


def test_by_place_oids_of_adjacent_chunks_spread_over_the_ring(by_place):
    oids = sorted(by_place.oid_of(OTHER, n * one_host.CHUNK, CID) for n in range(4096))
    gaps = [after - before for before, after in itertools.pairwise(oids)]
    assert max(gaps) < 20 * (1 << 64) // 4096  # of random numbers: some 8 times the mean
    assert sum(oid >> 63 for oid in oids) == pytest.approx(2048, abs=160)


def test_by_oid_the_place_gives_the_oid_but_any_name_is_served(by_place):
    by_oid = place_identity.ByOid()
    assert by_oid.oid_of(OTHER, 65536, CID) == by_place.oid_of(OTHER, 65536, CID) != ids.oid_of(CID)
    by_oid.record_names([named(1)])
    assert by_oid.may_serve(CID, ids.Oid(2)) and by_oid.drop_names(CID) == (1,)
    by_oid.record_cached_at_start([CID])
    assert not by_oid.was_cached_at_start(CID) and by_oid.may_serve(CID, ids.Oid(1))


def test_chunk_with_many_places_keeps_its_latest_names(by_place):
    for name in range(1, 10 * place_identity.MAX_NAMES):
        by_place.record_names([named(name)])
    names = by_place.names_of(CID)
    assert names == tuple(range(9 * place_identity.MAX_NAMES, 10 * place_identity.MAX_NAMES))
