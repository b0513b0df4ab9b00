# SPDX-License-Identifier: Apache-2.0
"""Authorization of peer requests by chunk maps of images in a folder."""

import json
import uuid

import pytest
import trio

from acstor_agent.engine import chunk_ref
from acstor_agent.engine import identity
from acstor_agent.engine import priority
from acstor_agent.engine.serve import authorization
from acstor_agent.images.image import chunk_lookup
from acstor_agent.images.maps import detached_maps
from acstor_agent.sources import base
from acstor_agent.sources import glance
from acstor_common import errors
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.wire.peer import peer_wire
from tests.fakes import fake_glance
from tests.fakes import http_server
from tests.fakes import one_host
from tests.fakes import reading_source
from tests.lab import local

HERE, PEER, OTHER = ids.HostId("here"), ids.HostId("peer"), ids.HostId("other")
CHUNK = geometry.DEFAULT_CHUNK_BYTES
DATA = local.random_bytes(9 * CHUNK + 1000, seed=5)
DATA = DATA[: 3 * CHUNK] + bytes(CHUNK) + DATA[4 * CHUNK :]
CIDS = [ids.cid_of(DATA[start : start + CHUNK]) for start in range(0, len(DATA), CHUNK)]
NOWHERE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")


class FolderSource(reading_source.ReadingSource):
    """A folder of images that records requests and may be down or slow."""

    location = "the folder"

    def __init__(self, images):
        self.images, self.asked, self.is_down, self.delay_s, self.most = images, [], False, 0, 0
        self._in_flight, self.is_forbidden = 0, False

    async def size_bytes(self, blob):
        return len(await self._bytes(blob, "size"))

    async def read(self, blob, offset, length, cid=None):
        return (await self._bytes(blob, offset))[offset : offset + length]

    async def _bytes(self, blob, what):
        self.asked.append((blob.kind, what))
        self._in_flight += 1
        self.most = max(self.most, self._in_flight)
        await trio.sleep(self.delay_s)
        self._in_flight -= 1
        if self.is_forbidden:
            raise errors.ChunkRefused(blob.file_name, self.location)
        if self.is_down:
            raise errors.SourceUnreachable(blob.file_name, self.location)
        try:
            return (self.images.folder / blob.file_name).read_bytes()
        except FileNotFoundError:
            raise errors.ChunkMissing(blob.file_name, self.location) from None

    async def aclose(self):
        pass


class Host:
    """The look-up of a host without attached images, except those a test sets."""

    def __init__(self, images, nursery, **how):
        self.source = FolderSource(images)
        self.attached = lambda image_id, offset, length: None
        self.others = detached_maps.DetachedMaps(self.source, nursery, **how)
        self.naming = chunk_lookup.ChunkLookup(
            self, self.others, self, one_host.OneTable(hash_ring.Ring(0, ()))
        )
        self.rights = authorization.Authorization(HERE, self.naming, identity.ByContent())

    def content_at(self, *place):
        return self.attached(*place)

    def get_nowait(self, image_id):
        return None

    def pinned_part(self, image_id):
        return None

    async def open_attached(self, image_id):
        return False

    async def ask(self, image_id, chunk_no=0, host=PEER, **changes):
        """Look up the content of a request and authorize it, as the exchange does."""
        cid = CIDS[chunk_no]
        length = min(CHUNK, len(DATA) - chunk_no * CHUNK)
        proof = peer_wire.proof_of(cid, host, HERE)
        at = chunk_no * CHUNK
        mode = peer_wire.Mode.HOME
        get = chunk_ref.Request(
            1, image_id, at, length, proof, mode, priority.Priority.PEER, 1.0
        )._replace(**changes)
        await self.naming.read_map_for_peer(host, get.image_id, get.offset, get.length)
        found = self.rights.authorize(host, get)
        if isinstance(found, str):
            raise errors.ChunkMissing("a chunk", HERE, found)
        return found if found is None else found[0]


@pytest.fixture
def host(images, nursery):
    return Host(images, nursery)


@pytest.fixture
def image_id(images):
    return images.add(DATA)


def of_frame(frame):
    """Return the fields of a request for a frame of a boot image."""
    proof = peer_wire.proof_of(frame.cid, PEER, HERE)
    at = base.AT_BOOT_IMAGE + frame.offset
    return {"offset": at, "length": frame.stored_bytes, "proof": proof}


async def test_requests_for_whole_chunks_of_the_map_are_authorized(host, image_id):
    for chunk_no in (0, 4, 9):
        ref = await host.ask(image_id, chunk_no)
        assert (ref.image_id, ref.offset, ref.cid) == (
            image_id,
            chunk_no * CHUNK,
            CIDS[chunk_no],
        )
    reads = [kind for kind, _ in host.source.asked]
    # Size and trailer for the check, then header, directory and the CIDs of one page, once.
    assert reads.count(base.BlobKind.CHUNK_MAP) == 5


REFUSED = {
    "one byte": {"length": 1},
    "a byte less": {"length": CHUNK - 1},
    "two chunks": {"length": 2 * CHUNK},
    "not aligned": {"offset": CHUNK + 1},
    "another chunk": {"offset": CHUNK},
    "past the end": {"offset": 10 * CHUNK},
    "far past the end": {"offset": 1 << 50},
    "a frame of no boot image": {"offset": base.AT_BOOT_IMAGE},
    "the CID itself": {"proof": CIDS[0][:16]},
    "no proof": {"proof": bytes(16)},
    "proof for another host": {"proof": peer_wire.proof_of(CIDS[0], PEER, OTHER)},
    "proof of another host": {"proof": peer_wire.proof_of(CIDS[0], OTHER, HERE)},
}


@pytest.mark.parametrize("is_attached", [True, False], ids=["attached", "not attached"])
@pytest.mark.parametrize("name", REFUSED)
async def test_other_requests_are_refused(host, image_id, name, is_attached):
    if is_attached:
        cut = geometry.Geometry(len(DATA), CHUNK)

        def named(image_id, offset, length):
            if offset >= base.AT_BOOT_IMAGE:
                return None
            chunk_no = cut.chunk_at(offset, length)
            return ids.Content(ids.ZERO_CID if chunk_no is None else CIDS[chunk_no])

        host.attached = named
    with pytest.raises(errors.ChunkMissing):
        await host.ask(image_id, **REFUSED[name])
    assert host.rights.refused == 1


async def test_chunk_of_zeros_is_never_served(host, image_id):
    proof = peer_wire.proof_of(ids.ZERO_CID, PEER, HERE)
    with pytest.raises(errors.ChunkMissing):
        await host.ask(image_id, 3, proof=proof)


async def test_missing_image_is_cached_as_missing_for_a_moment(host, images, autojump_clock):
    for _ in range(20):
        with pytest.raises(errors.ChunkMissing):
            await host.ask(NOWHERE)
    assert len(host.source.asked) == 1
    images.add(DATA, NOWHERE)
    await trio.sleep(detached_maps.RECHECK_FAILED_S)
    assert (await host.ask(NOWHERE)).cid == CIDS[0]


async def test_image_that_the_source_refuses_is_not_reported_missing(
    host, image_id, autojump_clock
):
    host.source.is_forbidden = True
    for _ in range(2):  # also from the negative cache
        with pytest.raises(errors.ChunkRefused):
            await host.ask(image_id)
    assert len(host.source.asked) == 1
    host.source.is_forbidden = False
    await trio.sleep(detached_maps.RECHECK_FAILED_S)
    assert await host.ask(image_id)


async def test_deleted_image_is_noticed_after_a_minute(host, images, image_id, autojump_clock):
    await host.ask(image_id)
    images.path(image_id).unlink()
    await trio.sleep(detached_maps.RECHECK_S / 2)
    assert await host.ask(image_id)
    await trio.sleep(detached_maps.RECHECK_S / 2)
    with pytest.raises(errors.ChunkMissing):
        await host.ask(image_id)
    assert host.others.counts == {"images": 0, "map_bytes": 0}


async def test_known_images_are_served_while_the_source_is_down(
    host, images, image_id, autojump_clock
):
    await host.ask(image_id)
    host.source.is_down = True
    await trio.sleep(2 * detached_maps.RECHECK_S)
    assert (await host.ask(image_id, 1)).cid == CIDS[1]
    with pytest.raises(errors.SourceUnreachable):
        await host.ask(images.add(DATA))


async def test_map_of_another_image_is_refused(host, images, image_id):
    images.path(NOWHERE).write_bytes(DATA)
    images.map_path(NOWHERE).write_bytes(images.map_path(image_id).read_bytes())
    with pytest.raises(errors.ChunkMissing):
        await host.ask(NOWHERE)
    images.path(image_id).write_bytes(DATA[:-1])
    with pytest.raises(errors.ChunkMissing):
        await host.ask(image_id)


async def test_request_for_a_boot_image_frame_is_authorized(host, images, image_id):
    frame = images.add_boot_image(image_id, [0, 1, 5]).frames[0]
    assert (await host.ask(image_id, **of_frame(frame))).cid == frame.cid


async def test_map_loads_are_bounded_per_host_and_hosts_take_turns(host, images, autojump_clock):
    host.source.delay_s = 1.0
    many = [images.add(DATA) for _ in range(30)]
    done = {}

    async def ask(image_id, name):
        await host.ask(image_id, host=name)
        done.setdefault(name, trio.current_time() - began)

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for image_id in many[1:]:
            nursery.start_soon(ask, image_id, OTHER)
        await trio.sleep(0.1)
        nursery.start_soon(ask, many[0], PEER)
    assert host.source.most <= detached_maps.MAX_LOADS_PER_HOST + 1
    assert done[PEER] < 8  # its own six steps; those of the other host take 29 * 6 / 2


async def test_abandoned_map_loads_do_not_accumulate(host, images, autojump_clock):
    host.source.delay_s = 1.0
    for _ in range(200):
        with trio.move_on_after(0.001):
            await host.ask(ids.parse_image_id(str(uuid.uuid4())))
    assert len(host.others._loads._in_flight) <= detached_maps.MAX_LOADS_PER_HOST
    assert (await host.ask(images.add(DATA), host=OTHER)).cid == CIDS[0]
    await trio.sleep(5)
    assert not host.others._loads._in_flight and not host.others._limiters


async def test_requests_cancelled_before_their_turn_leave_no_state(host, images):
    image_id = images.add(DATA)
    for number in range(10):
        with trio.CancelScope() as scope:
            scope.cancel()
            await host.ask(image_id, host=ids.HostId(f"h{number}"))
    assert not host.others._limiters


async def test_cached_images_and_pages_are_bounded(images, nursery, autojump_clock):
    host = Host(images, nursery, images_limit=3, pages_bytes=5 * 10 * 32)
    many = [images.add(DATA) for _ in range(8)]
    for image_id in many:
        await host.ask(image_id)
        assert host.others.counts["images"] <= 3
    assert host.others.counts["map_bytes"] == 3 * 10 * 32
    assert await host.ask(many[0])


async def request_missing(host, name, times, pause_s=0.0):
    """Request images that do not exist; return how many requests were refused unasked."""
    refused = 0
    for _ in range(times):
        await trio.sleep(pause_s)
        try:
            await host.ask(ids.parse_image_id(str(uuid.uuid4())), host=name)
        except errors.ChunkMissing:
            pass
        except errors.SourceUnreachable:
            refused += 1
    return refused


@pytest.mark.expect_log("peer requests images that are not on this host too often")
async def test_invented_image_ids_of_a_host_are_rate_limited(host, image_id, autojump_clock):
    times, pause_s = 6000, 0.01
    refused = await request_missing(host, PEER, times, pause_s)
    each = 1 + detached_maps.MISS_COST
    rate = detached_maps.LOADS_PER_HOST
    assert len(host.source.asked) == times - refused
    assert len(host.source.asked) <= (2 * rate.burst + rate.per_s * times * pause_s) / each
    assert host.others.refused == refused
    assert len(host.others._missing) <= detached_maps.IMAGES
    assert (await host.ask(image_id, host=OTHER)).cid == CIDS[0]  # other hosts are still served


@pytest.mark.allow_log("too often")
async def test_invented_image_ids_of_all_hosts_are_rate_limited(host, image_id, autojump_clock):
    await host.ask(image_id)
    async with trio.open_nursery() as nursery:
        for number in range(200):
            nursery.start_soon(request_missing, host, f"h{number}", 100, 0.1)
    each, rate = 1 + detached_maps.MISS_COST, detached_maps.LOADS_IN_ALL
    assert len(host.source.asked) <= 10 + (2 * rate.burst + rate.per_s * 10) / each
    assert (await host.ask(image_id)).cid == CIDS[0]  # known images are still served


async def test_existing_images_are_looked_up_without_delay(host, images, autojump_clock):
    for number in range(60):
        assert await host.ask(images.add(DATA), host=f"h{number % 2}")
    assert host.others.refused == 0


@pytest.mark.expect_log("too often")
async def test_rate_limited_host_is_served_again_after_a_while(host, image_id, autojump_clock):
    assert await request_missing(host, PEER, 2000)
    with pytest.raises(errors.SourceUnreachable):
        await host.ask(image_id)
    await trio.sleep(60)
    assert (await host.ask(image_id)).cid == CIDS[0]


# Replaced artefacts


async def test_replaced_map_is_read_again_after_a_minute(host, images, image_id, autojump_clock):
    """Both maps have the same header but different CIDs."""
    await host.ask(image_id)
    images.path(image_id).unlink()
    images.map_path(image_id).unlink()
    other = local.random_bytes(len(DATA), seed=6)
    images.add(other, image_id)
    new = ids.cid_of(other[:CHUNK])
    proof = peer_wire.proof_of(new, PEER, HERE)
    await trio.sleep(detached_maps.RECHECK_S)
    assert (await host.ask(image_id, proof=proof)).cid == new
    assert host.others.counts == {"images": 1, "map_bytes": 10 * ids.CID_BYTES}


async def test_image_with_a_new_chunk_size_is_authorized_by_the_new_map(
    host, images, image_id, autojump_clock
):
    await host.ask(image_id)
    images.map_path(image_id).unlink()
    images.path(image_id).unlink()
    images.add(DATA, image_id, chunk_bytes=2 * CHUNK)
    cid = ids.cid_of(DATA[: 2 * CHUNK])
    wider = {"length": 2 * CHUNK, "proof": peer_wire.proof_of(cid, PEER, HERE)}
    await trio.sleep(detached_maps.RECHECK_S)
    assert (await host.ask(image_id, **wider)).cid == cid


async def test_unchanged_map_is_not_read_again(host, image_id, autojump_clock):
    await host.ask(image_id)
    for _ in range(3):
        host.source.asked.clear()
        await trio.sleep(detached_maps.RECHECK_S)
        await host.ask(image_id)
        kinds = [kind for kind, _ in host.source.asked]
        assert kinds == [base.BlobKind.CHUNK_MAP] * 2 + [base.BlobKind.IMAGE] * 2


async def test_page_of_a_map_replaced_while_loading_is_not_cached(
    host, images, image_id, autojump_clock
):
    await host.ask(image_id)
    image = host.others._images[image_id]
    host.others._forget(image_id)
    host.others._images[image_id] = detached_maps._Image(
        image.subject, image.tables, "another", 1e9
    )
    await host.others._load(image, 0)
    assert not host.others._pages


async def test_replaced_boot_image_is_read_again_after_a_minute(
    host, images, image_id, autojump_clock
):
    old = images.add_boot_image(image_id, [0, 1, 5]).frames[0]
    await host.ask(image_id, **of_frame(old))
    new = images.add_boot_image(image_id, [7, 8]).frames[0]
    await trio.sleep(detached_maps.RECHECK_S)
    assert (await host.ask(image_id, **of_frame(new))).cid == new.cid


class OnGlance:
    """A host whose source is Glance, with the images of the folder."""

    def __init__(self, host, images, server):
        self.images, self.files, self.now_s = images, server.files, 0.0
        self.source = glance.GlanceSource(fake_glance.session(server.url))
        host.others._source = self.source
        host.others._clock = lambda: self.now_s  # Glance responds in real time

    def show(self, image_id, made=""):
        """Store the current files of an image in Glance, and nothing else."""
        found = self.images.folder.glob(f"{image_id}.*")
        self.files.clear()
        fake_glance.fill(self.files, {path.name: path.read_bytes() for path in found}, made)

    def deactivate(self, image_id):
        path = f"v2/images/{image_id}"
        record = {**json.loads(self.files[path]), "status": "deactivated"}
        self.files[path] = json.dumps(record).encode()


@pytest.fixture
async def on_glance(host, images):
    with http_server.serve({}) as server:
        made = OnGlance(host, images, server)
        yield made
        await made.source.aclose()


async def test_artefacts_replaced_in_glance_are_found(host, images, on_glance):
    """The image points to their new ids; the former artefacts are deleted."""
    image_id = images.add(DATA)
    images.add_boot_image(image_id, [0, 1, 5])
    on_glance.show(image_id, "first")
    await host.ask(image_id)
    with pytest.raises(errors.ChunkMissing):  # loads the head of the boot image
        await host.ask(image_id, offset=base.AT_BOOT_IMAGE)
    images.path(image_id).unlink()
    images.map_path(image_id).unlink()
    images.add(DATA, image_id, chunk_bytes=2 * CHUNK)
    images.boot_image_path(image_id).unlink()
    frame = images.add_boot_image(image_id, [2, 3]).frames[0]
    on_glance.show(image_id, "second")
    on_glance.now_s += detached_maps.RECHECK_S
    cid = ids.cid_of(DATA[: 2 * CHUNK])
    wider = {"length": 2 * CHUNK, "proof": peer_wire.proof_of(cid, PEER, HERE)}
    assert (await host.ask(image_id, **wider)).cid == cid
    assert (await host.ask(image_id, **of_frame(frame))).cid == frame.cid


@pytest.mark.parametrize("is_known", [True, False], ids=["known before", "not known before"])
async def test_deactivated_image_is_still_served_for_valid_proofs(
    host, images, on_glance, is_known
):
    """Guests of other hosts read on, also after a restart of the home; all others are refused."""
    image_id = images.add(DATA)
    frame = images.add_boot_image(image_id, [0, 1, 5]).frames[0]
    on_glance.show(image_id)
    if is_known:
        await host.ask(image_id)
    on_glance.deactivate(image_id)
    for _ in range(2):
        on_glance.now_s += detached_maps.RECHECK_S
        assert (await host.ask(image_id, 4)).cid == CIDS[4]
        assert (await host.ask(image_id, **of_frame(frame))).cid == frame.cid
        with pytest.raises(errors.ChunkMissing):
            await host.ask(image_id, 4, proof=bytes(16))
    on_glance.files.clear()
    on_glance.now_s += detached_maps.RECHECK_S
    with pytest.raises(errors.ChunkMissing):
        await host.ask(image_id, 4)
    assert host.others.counts == {"images": 0, "map_bytes": 0}


async def test_boot_image_of_a_deactivated_image_is_refused_to_local_boots(host, images, on_glance):
    image_id = images.add(DATA)
    head = images.add_boot_image(image_id, [0, 1, 5])
    on_glance.show(image_id)
    assert (await host.others.boot_head(HERE, image_id))[1].frames == head.frames
    on_glance.deactivate(image_id)
    with pytest.raises(errors.ChunkRefused, match="deactivated"):
        await host.others.boot_head(HERE, image_id)


# Runs and their segments

SHORT = len(DATA) - (len(CIDS) - 1) * CHUNK


def run_of(image_id, first, count, last=CHUNK, **changes):
    length = (count - 1) * CHUNK + last
    mode, urgency = peer_wire.Mode.HOME, priority.Priority.PEER
    proof = peer_wire.proof_of(b"".join(CIDS[first : first + count]), PEER, HERE)
    request = chunk_ref.Request(
        1, image_id, first * CHUNK, length, proof, mode, urgency, 1.0, CHUNK if count > 1 else 0
    )
    return request._replace(**changes)


async def test_run_of_a_detached_image_is_known_once_its_pages_are_loaded(host, image_id):
    request = run_of(image_id, 0, 3)
    assert host.naming.contents_of(request) is None
    await host.naming.read_map_for_peer(PEER, image_id, 0, CHUNK)
    assert [content.cid for content in host.naming.contents_of(request)] == CIDS[:3]
    found = host.rights.authorize(PEER, request)
    assert [ref.cid for ref in found] == CIDS[:3]
    assert [(ref.offset, ref.length) for ref in found] == [(n * CHUNK, CHUNK) for n in range(3)]


async def test_segments_of_a_run_are_found_in_its_map_page(host, image_id):
    await host.naming.read_map_for_peer(PEER, image_id, 0, CHUNK)
    assert host.naming.segments_of(run_of(image_id, 1, 2)) is None  # each chunk is a segment
    host.naming._rings = one_host.OneTable(hash_ring.Ring(1, (), segment_chunks=2))
    around = host.naming.segments_of(run_of(image_id, 1, 2))
    assert around == ([*CIDS[:3], ids.ZERO_CID], 1, CHUNK, 2)
    frame = run_of(image_id, 0, 1, offset=base.AT_BOOT_IMAGE)
    assert host.naming.segments_of(frame) is None
    host.naming._rings = one_host.OneTable(hash_ring.Ring(1, (), segment_chunks=16))
    last = len(CIDS) - 1
    around = host.naming.segments_of(run_of(image_id, last, 1, SHORT))
    assert around.cids == [*CIDS[:3], ids.ZERO_CID, *CIDS[4:]]


async def test_map_forgotten_after_the_lookup_loses_only_the_segments(host, image_id):
    """Other requests may evict pages at any time; the looked-up contents are still served."""
    host.naming._rings = one_host.OneTable(hash_ring.Ring(1, (), segment_chunks=4))
    request = run_of(image_id, 1, 2)
    await host.naming.read_map_for_peer(PEER, image_id, 0, CHUNK)
    contents = host.naming.contents_of(request)
    in_segments = host.rights.authorize(PEER, request, contents)
    assert {ref.segment for ref in in_segments} == {min(map(ids.oid_of, CIDS[:3]))}
    host.others._pages.clear()
    alone = [ref._replace(segment=None, bit=1) for ref in in_segments]
    assert host.rights.authorize(PEER, request, contents) == alone
    host.others._forget(image_id)
    assert host.rights.authorize(PEER, request, contents) == alone


async def test_map_replaced_after_the_lookup_yields_no_segments(host, images, image_id):
    host.naming._rings = one_host.OneTable(hash_ring.Ring(1, (), segment_chunks=4))
    request = run_of(image_id, 6, 3)
    await host.naming.read_map_for_peer(PEER, image_id, 0, CHUNK)
    contents = host.naming.contents_of(request)
    host.others._forget(image_id)
    images.map_path(image_id).unlink()
    images.path(image_id).unlink()
    images.add(DATA, image_id, chunk_bytes=2 * CHUNK)
    await host.naming.read_map_for_peer(PEER, image_id, 0, CHUNK)
    found = host.rights.authorize(PEER, request, contents)
    assert [(ref.cid, ref.segment) for ref in found] == [(cid, None) for cid in CIDS[6:9]]
