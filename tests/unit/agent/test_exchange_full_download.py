# SPDX-License-Identifier: Apache-2.0
"""Hosts whose source has no range reads: one host downloads an image for all."""

import random
import threading

import msgspec
import pytest
import trio

from acstor_agent.core.mount import blocked_requests
from acstor_agent.engine.ring import placement
from acstor_agent.engine_io import exchange
from acstor_agent.sources import base
from acstor_agent.sources import glance
from acstor_agent.sources import source_client
from acstor_agent.sources.wrappers import download_source
from acstor_agent.sources.wrappers import full_download
from acstor_common import errors
from acstor_common.ring import hash_ring
from tests.fakes import exchange_cloud
from tests.fakes import fake_glance
from tests.fakes import http_server
from tests.fakes import rangeless

CHUNK, IMAGE, BYTES = exchange_cloud.CHUNK, exchange_cloud.IMAGE, exchange_cloud.BYTES
CHUNKS = len(BYTES) // CHUNK
NAMES = ("h1", "h2", "h3", "h4")
PATH = f"/v2/images/{IMAGE}/file"
BLOB = base.Blob(IMAGE, base.BlobKind.IMAGE)


class Cloud(exchange_cloud.Cloud):
    """Hosts whose only source is Glance."""

    def __init__(self, folder, nursery, names, server):
        self.sources, self._server, self._folder = {}, server, folder
        super().__init__(folder, nursery, names, may_hedge=False)

    def elsewhere(self, here):
        def words(image_id):
            home = placement.image_home(self.ring, image_id)
            return "" if home == here else f"{home} reads it as one stream, for all hosts"

        return words

    def _source_of(self, here):
        driver = glance.GlanceSource(fake_glance.session(self._server.url))
        copies = download_source.DownloadSource(
            *(driver, self._folder, self.nursery, random.Random(1)),
            delegated_host=self.elsewhere(here),
            limits=download_source.DownloadLimits(
                full_download.StreamLimits(min_pause_s=0.01), image_wait_s=0.3
            ),
        )
        made = self.sources[here] = source_client.SourceClient([driver], copies=copies)
        return made, made.source_access

    @property
    def image_home(self):
        return placement.image_home(self.ring, IMAGE)

    def without(self, name):
        """Return the next table without a host."""
        hosts = tuple(host for host in self.ring.hosts if host.host != name)
        return hash_ring.Ring(self.ring.epoch + 1, hosts)


@pytest.fixture
def store():
    made = rangeless.Rangeless()
    with fake_glance.serving({BLOB.file_name: BYTES}) as server:
        server.always = made
        made.server = server
        yield made


@pytest.fixture
async def cloud(tmp_path, store):
    running = exchange_cloud.running(tmp_path, NAMES, store.server, kind=Cloud)
    async with running as made:
        yield made
        for source in made.sources.values():
            await source.aclose()


async def read(cloud, name, chunk_nos):
    for chunk_no in chunk_nos:
        wanted = cloud.ref_of(chunk_no)
        got = await cloud.hosts[name].fetch_chunk(wanted, exchange.Priority.GUEST, 60.0)
        assert got.data == exchange_cloud.bytes_of(chunk_no)


async def read_everywhere(cloud, chunk_nos, names=NAMES):
    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(read, cloud, name, chunk_nos)


async def test_one_host_downloads_an_image_for_all(cloud, store):
    await read_everywhere(cloud, range(CHUNKS))
    assert store.full_downloads == {PATH: 1}
    for name, source in cloud.sources.items():
        has_copy = bool(source._copies._copies)
        assert has_copy == (name == cloud.image_home)


async def test_waiting_guest_read_names_the_host_that_downloads_the_image(cloud, store):
    go_on = threading.Event()
    store.streams = [rangeless.held_back(10 * CHUNK, go_on)]
    await read_everywhere(cloud, range(10))
    reader = next(name for name in NAMES if name != cloud.image_home)
    waiting = blocked_requests.Wait(None, 0.0, None)
    wanted = [cloud.ref_of(CHUNKS - 1)]
    with cloud.hosts[reader].submit_read(wanted, deadline_s=60.0, guest_wait=waiting) as wish:
        with trio.fail_after(20):
            while "for all hosts" not in waiting.why:  # noqa: ASYNC110 - no event
                await trio.sleep(0.02)
        assert f"{cloud.image_home} reads it as one stream" in waiting.why
        await read(cloud, reader, range(10))  # cached chunks are readable meanwhile
        go_on.set()
        with trio.fail_after(20):
            [got] = await wish.wait()
    assert got.data == exchange_cloud.bytes_of(CHUNKS - 1)
    assert store.full_downloads == {PATH: 1}


async def test_timed_out_guest_read_names_the_host_that_downloads_the_image(cloud, store):
    go_on = threading.Event()
    store.streams = [rangeless.held_back(CHUNK, go_on)]
    reader = next(name for name in NAMES if name != cloud.image_home)
    await read(cloud, reader, [0])
    why = f"{cloud.image_home} reads it as one stream, for all hosts"
    with pytest.raises(errors.DeadlineExceeded, match=why):
        await cloud.hosts[reader].fetch_chunk(cloud.ref_of(30), exchange.Priority.GUEST, 2.0)
    go_on.set()


async def test_host_is_not_backed_off_for_data_not_downloaded_yet(cloud, store):
    go_on = threading.Event()
    store.streams = [rangeless.held_back(CHUNK, go_on)]
    async with trio.open_nursery() as nursery:
        for name in NAMES:
            nursery.start_soon(read, cloud, name, range(20, 25))
        await trio.sleep(2)
        assert not any(host.list_backoffs() for host in cloud.hosts.values())
        go_on.set()
    assert store.full_downloads == {PATH: 1}


@pytest.mark.expect_log("is in backoff")
async def test_next_image_home_restarts_the_download_after_a_death(cloud, store):
    go_on = threading.Event()
    store.streams = [rangeless.held_back(5 * CHUNK, go_on)]
    await read_everywhere(cloud, range(5))
    dead = cloud.image_home
    left = [name for name in NAMES if name != dead]
    cloud.dead.add(dead)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_everywhere, cloud, range(CHUNKS), left)
        await trio.sleep(0.5)
        assert store.full_downloads == {PATH: 1}  # no other host begins before the table changes
        cloud.former, cloud.ring = cloud.ring, cloud.without(dead)
    assert store.full_downloads == {PATH: 2}
    go_on.set()


async def test_former_image_homes_download_serves_while_its_table_counts(cloud, store):
    await read_everywhere(cloud, range(3))
    former = cloud.image_home
    for vnodes in range(1, 400):  # a table with another image home
        hosts = tuple(
            msgspec.structs.replace(host, vnodes=vnodes) if host.host != former else host
            for host in cloud.ring.hosts
        )
        if placement.image_home(after := hash_ring.Ring(2, hosts), IMAGE) != former:
            break
    cloud.former, cloud.ring = cloud.ring, after
    assert cloud.image_home != former
    await read_everywhere(cloud, range(CHUNKS))
    assert store.full_downloads == {PATH: 1}


async def test_broken_stream_is_restarted_by_the_same_host(cloud, store):
    store.streams = [rangeless.cut(5 * CHUNK), rangeless.cut(7 * CHUNK + 1)]
    await read_everywhere(cloud, range(CHUNKS))
    assert store.full_downloads == {PATH: 3}


async def test_source_with_ranges_again_is_read_in_ranges(cloud, store):
    await read_everywhere(cloud, range(3))
    store.server.always = http_server.fine
    for source in cloud.sources.values():
        assert await source.size_bytes(BLOB) == len(BYTES)
        assert source.source_access(IMAGE, 0) is placement.SourceAccess.IN_PARTS
    await read_everywhere(cloud, range(CHUNKS))
    assert store.full_downloads == {PATH: 1}
