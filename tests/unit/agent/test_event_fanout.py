# SPDX-License-Identifier: Apache-2.0
"""Announcements and hints of peers: only the home of a chunk may send eviction hints."""

import uuid

import pytest
import trio
import trio.testing

from acstor_agent.engine.gossip import announcements
from acstor_agent.images import event_fanout
from acstor_agent.images.read import advertised_prefetch
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.util import token_buckets
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
    async with one_host.one_host(tmp_path, data=DATA, table=one_machine.table(8)) as made:
        yield made


def home_of(host, ref):
    return host.chunks.core.context.ring.home(ref.ring_position)


async def test_eviction_hint_is_accepted_only_from_the_home_of_the_chunk(host):
    image = await host.mirrors.attach_image(one_host.IMAGE)
    refs = host.chunks.chunk_refs_of(image.map, range(6))
    demoted = []
    host.cache.demote_chunk = lambda cid: demoted.append(cid) or True
    hint = peer_wire.EvictionHint(announced.alone(*(ref.oid for ref in refs), 7))
    for home in {home_of(host, ref) for ref in refs}:
        host.news.announcement_received(home, hint)
        await trio.testing.wait_all_tasks_blocked()
        assert demoted == [ref.cid for ref in refs if home_of(host, ref) == home]
        demoted.clear()
    assert host.chunks.counters.demoted == 6


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
    assert all(cid == image.map.cid_of(number) for number, cid in found)


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
        if home_of(host, refs[0]) != H2
    )
    here = refs[0].cid
    host.chunks.has_chunk = lambda cid: cid == here
    seen = []
    image.prefetch.prefetcher.chunk_advertised = seen.append
    reported = (refs[0].ring_position, 0b0111)
    host.news.announcement_received(H2, peer_wire.Advertise((reported,), LENGTH))
    first = refs[0].offset // one_host.CHUNK
    assert seen == [first + 1, first + 2]
    await trio.testing.wait_all_tasks_blocked()
    host.news.announcement_received(H2, peer_wire.Advertise((reported,), 16))
    await trio.testing.wait_all_tasks_blocked()
    assert len(seen) == 2


async def test_eviction_hint_for_part_of_a_segment_is_accepted_from_its_home(in_segments):
    host = in_segments
    image = await host.mirrors.attach_image(one_host.IMAGE)
    refs = host.chunks.chunk_refs_of(image.map, range(4, 8))
    home, demoted = home_of(host, refs[0]), []
    host.cache.demote_chunk = lambda cid: demoted.append(cid) or True
    other = next(name for name in (H2, H3) if name != home)
    for name in (home, other):
        hint = peer_wire.EvictionHint(((refs[0].ring_position, 0b1001),), LENGTH)
        host.news.announcement_received(name, hint)
    assert demoted == [refs[0].cid, refs[3].cid]


# Costs

IMAGES = 8


@pytest.fixture
async def shared(tmp_path):
    """A host with IMAGES attached images of equal content; ``seen`` gets their prefetchers' news.

    ``reported`` announces all their segments.
    """
    table = hash_ring.Ring(1, one_machine.table(8).hosts, segment_chunks=LENGTH)
    async with one_host.one_host(tmp_path, table=table) as made:
        data, made.seen, made.attached = one_host.image_bytes(16 * one_host.CHUNK), [], []
        for number in range(IMAGES):
            image_id = ids.ImageId(str(uuid.UUID(int=number)))
            made.add(data, image_id)
            image = await made.mirrors.attach_image(image_id)
            image.prefetch.prefetcher.chunk_advertised = lambda chunk_no, number=number: (
                made.seen.append((number, chunk_no))
            )
            made.attached.append(image)
        refs = made.chunks.chunk_refs_of(image.map, range(0, 16, LENGTH))
        made.reported = tuple([(ref.ring_position, 0b0001) for ref in refs])
        made.others = {number for number, ref in enumerate(refs) if home_of(made, ref) != H2}
        yield made


def told(host):
    """Return the images whose prefetchers heard of all segments that H2 is not the home of."""
    for number in {number for number, _ in host.seen}:
        chunks = {chunk_no // LENGTH for image, chunk_no in host.seen if image == number}
        assert chunks == host.others
    return sorted({number for number, _ in host.seen})


async def test_announcement_of_chunks_that_many_images_share_takes_many_loop_turns(
    shared, monkeypatch
):
    monkeypatch.setattr(event_fanout, "TURN_LOOKUPS", 1)
    shared.news.announcement_received(H2, peer_wire.Advertise(shared.reported, LENGTH))
    assert told(shared) == [0]
    shared.news.announcement_received(H2, peer_wire.Advertise(shared.reported, LENGTH))
    assert told(shared) == [0]  # one part in a turn, whatever arrives in it
    await trio.testing.wait_all_tasks_blocked()
    assert told(shared) == [*range(IMAGES)]
    assert len(shared.seen) == 2 * IMAGES * len(shared.others)


@pytest.mark.parametrize("kind", [peer_wire.Advertise, peer_wire.EvictionHint])
async def test_peer_pays_for_segments_that_images_have_until_its_allowance_is_used(
    shared, monkeypatch, kind
):
    asked = []
    for number, image in enumerate(shared.attached):
        name = "chunks_advertised" if kind is peer_wire.Advertise else "chunks_of"
        real = getattr(image.prefetch, name)
        monkeypatch.setattr(
            image.prefetch,
            name,
            lambda some, real=real, number=number: asked.append(number) or real(some),
        )
    monkeypatch.setattr(shared.cache, "demote_chunk", lambda cid: True)
    monkeypatch.setattr(shared.chunks.core.context.ring, "home", lambda oid: H2)
    one_image = LENGTH * advertised_prefetch.lookups_of_hit(1)
    rate = token_buckets.Rate(per_s=1e-6, burst=LENGTH + 2.5 * one_image)
    monkeypatch.setattr(announcements, "LOOKUPS_OF_PEER", rate)
    limits = announcements.AnnouncementLimits(announcements.ANNOUNCED_CHUNKS, 10)
    shared.chunks.core.context.announcements.limits = limits
    for _ in range(2):
        shared.news.announcement_received(H2, kind(shared.reported, LENGTH))
        await trio.testing.wait_all_tasks_blocked()
    assert sorted(set(asked)) == [0, 1, 2]


async def test_announced_chunks_are_looked_up_without_references_to_their_segments(shared):
    shared.chunks._refs = None
    shared.news.announcement_received(H2, peer_wire.Advertise(shared.reported, LENGTH))
    await trio.testing.wait_all_tasks_blocked()
    assert told(shared) == [*range(IMAGES)]


@pytest.mark.expect_log("an announcement of a peer has failed")
async def test_announcement_that_fails_does_not_stop_later_ones(shared, monkeypatch):
    monkeypatch.setattr(event_fanout, "TURN_LOOKUPS", 1)
    monkeypatch.setattr(shared.attached[1].prefetch, "chunks_advertised", None)
    shared.news.announcement_received(H2, peer_wire.Advertise(shared.reported, LENGTH))
    await trio.testing.wait_all_tasks_blocked()
    assert told(shared) == [0]
    monkeypatch.undo()
    shared.news.announcement_received(H2, peer_wire.Advertise(shared.reported, LENGTH))
    await trio.testing.wait_all_tasks_blocked()
    assert told(shared) == [*range(IMAGES)]
