# SPDX-License-Identifier: Apache-2.0
"""Announcements and hints of peers: only the home of a chunk may send eviction hints."""

import pytest

from acstor_agent.engine import actions
from acstor_agent.images import event_fanout
from acstor_agent.images.image import usage
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.wire.peer import peer_wire
from tests.fakes import announced
from tests.fakes import one_host
from tests.fakes import one_machine

H2, H3 = ids.HostId("h2"), ids.HostId("h3")
DATA = one_host.image_bytes(6 * one_host.CHUNK)
LENGTH = 4
ZEROS = bytes(one_host.CHUNK)


@pytest.fixture
async def host(tmp_path):
    async with one_host.one_host(tmp_path, data=DATA) as made:
        yield made


async def test_eviction_hint_is_accepted_only_from_the_home_of_the_chunk(host):
    image = await host.mirrors.attach_image(one_host.IMAGE)
    await image.read_at(0, len(DATA))
    of_h2 = {image.map.cid_of(number) for number in (1, 4)}
    host.chunks.home_of = lambda ref: H2 if ref.cid in of_h2 else H3
    fanout = event_fanout.EventFanout(
        host.chunks, host.mirrors, host.cache, usage.ImageUsage(host.mirrors, set, set)
    )
    demoted = []
    host.cache.demote_chunk = lambda cid: demoted.append(cid) or True
    everything = announced.alone(*(ids.oid_of(image.map.cid_of(n)) for n in range(6)), 7)
    fanout.announcements_accepted(actions.ForwardAnnouncement(H2, (), everything))
    assert set(demoted) == of_h2 and host.chunks.counters.demoted == 2


# Segments


@pytest.fixture
async def in_segments(tmp_path):
    """A host with an image of 16 chunks, the second one zeros, in segments of LENGTH chunks."""
    table = hash_ring.Ring(1, one_machine.table(8).hosts, segment_chunks=LENGTH)
    async with one_host.one_host(tmp_path, table=table) as made:
        data = one_host.image_bytes(16 * one_host.CHUNK)
        made.add(data[: one_host.CHUNK] + ZEROS + data[2 * one_host.CHUNK :])
        yield made


async def test_announced_segment_yields_the_chunks_of_its_bitmap_without_zeros(in_segments):
    image = await in_segments.mirrors.attach_image(one_host.IMAGE)
    name = in_segments.chunks.chunk_ref_of(image.map, 0).ring_position
    found = image.prefetch.chunks_of((name, 0b1011))
    assert [number for number, _ in found] == [0, 3]
    assert all(ref.ring_position == name and ref.cid == image.map.cid_of(n) for n, ref in found)


async def test_segment_of_another_image_yields_no_chunks(in_segments):
    image = await in_segments.mirrors.attach_image(one_host.IMAGE)
    names = {
        in_segments.chunks.chunk_ref_of(image.map, number).ring_position for number in range(16)
    }
    others = {ids.oid_of(image.map.cid_of(number)) for number in range(16)} - names
    assert len(others) >= 12  # including that of zeros
    for oid in (*others, ids.Oid(7)):
        assert not image.prefetch.chunks_of((oid, 0b1111))


async def test_announced_chunks_are_prefetched_unless_cached(in_segments):
    host = in_segments
    image = await host.mirrors.attach_image(one_host.IMAGE)
    refs = next(
        refs
        for refs in (
            host.chunks.chunk_refs_of(image.map, range(at, at + LENGTH)) for at in (4, 8, 12)
        )
        if host.chunks.home_of(refs[0]) != H2
    )
    here = refs[0].cid
    host.chunks.has_chunk = lambda cid: cid == here
    seen = []
    image.prefetch.prefetcher.chunk_advertised = seen.append
    reported = (refs[0].ring_position, 0b0111)
    host.news.announcement_received(H2, peer_wire.Advertise((reported,), LENGTH))
    first = refs[0].offset // one_host.CHUNK
    assert seen == [first + 1, first + 2]
    host.news.announcement_received(H2, peer_wire.Advertise((reported,), 16))
    assert len(seen) == 2


async def test_eviction_hint_for_part_of_a_segment_is_accepted_from_its_home(in_segments):
    host = in_segments
    image = await host.mirrors.attach_image(one_host.IMAGE)
    refs = host.chunks.chunk_refs_of(image.map, range(4, 8))
    home, demoted = host.chunks.home_of(refs[0]), []
    host.cache.demote_chunk = lambda cid: demoted.append(cid) or True
    other = next(name for name in (H2, H3) if name != home)
    for name in (home, other):
        hint = peer_wire.EvictionHint(((refs[0].ring_position, 0b1001),), LENGTH)
        host.news.announcement_received(name, hint)
    assert demoted == [refs[0].cid, refs[3].cid]
