# SPDX-License-Identifier: Apache-2.0
"""Blobs in stores without range reads: a full download serves the ranges."""

import dataclasses
import json
import os
import pathlib
import random
import resource
import threading

import pytest
import trio
import trio.testing

from acstor_agent.core.sources import attempt_timeout
from acstor_agent.engine.ring import placement
from acstor_agent.sources import base
from acstor_agent.sources import gateway
from acstor_agent.sources import glance
from acstor_agent.sources import source_client
from acstor_agent.sources.wrappers import deadline_source
from acstor_agent.sources.wrappers import download_source
from acstor_agent.sources.wrappers import full_download
from acstor_common import errors
from acstor_common.model import ids
from tests.fakes import fake_glance
from tests.fakes import glance_records
from tests.fakes import http_server
from tests.fakes import rangeless
from tests.fakes import reading_source

MIB = 1 << 20
IMAGE, RECORD = fake_glance.IMAGE, fake_glance.RECORD
CHUNK_MAP, BOOT_IMAGE = fake_glance.CHUNK_MAP, fake_glance.BOOT_IMAGE
MAP = random.Random(5).randbytes(3 * MIB + 77)
BOOT = random.Random(6).randbytes(2 * MIB + 5)
BLOBS = {
    IMAGE.file_name: glance_records.BYTES,
    CHUNK_MAP.file_name: MAP,
    BOOT_IMAGE.file_name: BOOT,
}
STREAM = full_download.StreamLimits(min_pause_s=0.01, max_pause_s=0.01)


@pytest.fixture
def server():
    with fake_glance.serving(BLOBS) as running:
        yield running


@pytest.fixture
def store(server):
    """A store without range reads."""
    server.always = rangeless.Rangeless()
    return server.always


def over(server, folder, nursery, *others, delegated_host="", **limits):
    """Return a source client over Glance and further sources.

    :param delegated_host: description of the host that downloads images, if not this one
    """
    driver = glance.GlanceSource(fake_glance.session(server.url))
    copies = download_source.DownloadSource(
        *(driver, folder, nursery, random.Random(1), lambda image_id: delegated_host),
        limits=download_source.DownloadLimits(**{"stream": STREAM, **limits}),
    )
    return source_client.SourceClient([driver, *others], copies=copies)


def set_limits(source, **limits):
    """Change limits of a source's downloads."""
    source._copies.limits = dataclasses.replace(source._copies.limits, **limits)


def set_stream_limits(source, **limits):
    """Change limits of a source's next streams."""
    set_limits(source, stream=dataclasses.replace(STREAM, **limits))


@pytest.fixture
async def source(server, store, tmp_path, nursery):
    made = over(server, tmp_path, nursery)
    yield made
    await made.aclose()


async def test_default_limits_are_read_when_a_source_is_created(
    server, tmp_path, nursery, monkeypatch
):
    monkeypatch.setattr(attempt_timeout, "BASE_S", 7.0)
    driver = glance.GlanceSource(fake_glance.session(server.url))
    copies = download_source.DownloadSource(driver, tmp_path, nursery, random.Random(1))
    assert copies.limits.lookup_s == 7.0
    await source_client.SourceClient([driver], copies=copies).aclose()
    place = deadline_source.DeadlineSource(driver)
    assert place._timeout.deadline_s() == 7.0


def artefact_path(server, blob=CHUNK_MAP):
    kind, _ = glance.ARTEFACTS[blob.kind]
    return f"/v2/images/{json.loads(server.files[RECORD])[kind.pointer]}/file"


def nameless_files(folder):
    """Return how many unlinked files of a folder this process has open."""
    names = []
    for link in pathlib.Path("/proc/self/fd").iterdir():
        try:
            names.append(os.readlink(link))
        except FileNotFoundError:
            continue
    return sum(name.startswith(f"{folder}/") and name.endswith("(deleted)") for name in names)


async def all_gone(folder):
    """Wait until no unlinked file is open; a hash may still be computed."""
    with trio.fail_after(10):
        while nameless_files(folder):  # noqa: ASYNC110 - there is no event
            await trio.sleep(0.01)


@pytest.mark.parametrize(
    "refuse", [http_server.status(400), http_server.status(416), http_server.whole_file]
)
async def test_artefact_is_downloaded_once_and_then_read_in_ranges(
    server, store, source, refuse, tmp_path
):
    store._refuse = refuse
    if refuse is http_server.whole_file:
        server.always = store
    assert await source.size_bytes(CHUNK_MAP) == len(MAP)
    for offset, length in [(0, len(MAP)), (5, 10), (MIB - 1, 2), (len(MAP) - 1, 1)]:
        assert await source.read(CHUNK_MAP, offset, length) == MAP[offset : offset + length]
    assert store.full_downloads == {artefact_path(server): 1}
    assert source.os_hash(CHUNK_MAP).algo == "sha512"
    assert await source.find_blob(CHUNK_MAP) == (len(MAP), artefact_path(server).split("/")[3])
    assert nameless_files(tmp_path) == 1
    with pytest.raises(errors.ChunkMissing, match="it ends at byte"):
        await source.read(CHUNK_MAP, len(MAP) - 1, 2)
    await source.aclose()
    await all_gone(tmp_path)
    assert not list(tmp_path.iterdir())


async def test_many_readers_share_one_stream(server, store, source):
    read = await reading_source.read_side_by_side(source, BOOT_IMAGE, len(BOOT), 99_999)
    assert read == BOOT
    assert store.full_downloads == {artefact_path(server, BOOT_IMAGE): 1}


async def test_store_with_ranges_is_read_in_ranges(server, source):
    server.always = http_server.fine
    assert await source.size_bytes(CHUNK_MAP) == len(MAP)
    assert await source.read(CHUNK_MAP, 5, 10) == MAP[5:15]
    assert server.body_bytes < 100_000


async def test_downloaded_part_is_readable_while_the_rest_arrives(store, source):
    go_on = threading.Event()
    store.streams = [rangeless.held_back(100_000, go_on)]
    with trio.fail_after(10):
        assert await source.read(BOOT_IMAGE, 0, 64) == BOOT[:64]
        assert await source.read(BOOT_IMAGE, 99_990, 10) == BOOT[99_990:100_000]
    with trio.move_on_after(0.1) as waited:  # a cancelled reader does not disturb others
        await source.read(BOOT_IMAGE, 99_990, 11)
    assert waited.cancelled_caught
    go_on.set()
    assert await source.read(BOOT_IMAGE, 0, len(BOOT)) == BOOT


async def test_timed_out_reader_gets_the_progress_of_the_download(store, source):
    go_on = threading.Event()
    store.streams = [rangeless.held_back(100_000, go_on)]
    assert await source.read(BOOT_IMAGE, 0, 100_000) == BOOT[:100_000]
    set_limits(source, boot_image_wait_s=0.2)
    why = f"one stream, which is not there yet: 100000 of {len(BOOT)} bytes were received"
    with pytest.raises(errors.ChunkRefused, match=why):
        await source.read(BOOT_IMAGE, 2 * MIB, 4)
    go_on.set()


async def test_broken_stream_is_restarted_and_resumes_at_its_position(server, store, source):
    store.streams = [rangeless.cut(n) for n in (MIB + 3, 10, 2 * MIB, 2 * MIB + 1)]
    assert await source.read(CHUNK_MAP, 0, len(MAP)) == MAP
    assert store.full_downloads == {artefact_path(server): 5}


@pytest.mark.expect_log("download failed, 10 of .* the body ended|download failed, 10 of")
async def test_stream_without_progress_is_abandoned_and_retried_later(server, store, source):
    store.streams = [rangeless.cut(10)] * 4
    with pytest.raises(errors.SourceUnreachable):
        await source.read(CHUNK_MAP, 5, 10)
    assert store.full_downloads == {artefact_path(server): 4}
    with pytest.raises(errors.SourceUnreachable):
        await source.read(CHUNK_MAP, 0, 4)
    assert store.full_downloads == {artefact_path(server): 4}  # not again at once
    set_limits(source, retry_s=0.0)
    assert await source.read(CHUNK_MAP, 0, len(MAP)) == MAP


@pytest.mark.expect_log("download failed")
async def test_stream_that_keeps_breaking_is_abandoned_after_some_tries(server, store, source):
    store.streams = [rangeless.cut(n * 1000) for n in range(1, 100)]
    with pytest.raises(errors.SourceUnreachable):
        await source.read(CHUNK_MAP, 0, len(MAP))
    assert store.full_downloads == {artefact_path(server): STREAM.max_attempts}


@pytest.mark.expect_log("download failed, .*less than 100000 bytes of it arrived in 0.2 s")
async def test_trickling_stream_is_abandoned_and_frees_its_slot(server, store, source):
    set_stream_limits(source, window_s=0.2, min_bytes=100_000)
    store.streams = [rangeless.trickling(0.02)] * STREAM.max_attempts
    with (
        trio.fail_after(25),
        pytest.raises(errors.SourceUnreachable, match="bytes of it arrived in"),
    ):
        await source.read(CHUNK_MAP, MIB, 4)
    assert store.full_downloads[artefact_path(server)] <= 1 + STREAM.max_attempts
    assert source._copies._artefact_turns.borrowed_tokens == 0


async def test_slow_stream_above_the_minimum_rate_completes(store, source):
    set_stream_limits(source, window_s=2.0, min_bytes=100_000)
    store.streams = [rangeless.trickling(0.2, 200_000)]
    began_s = trio.current_time()
    assert await source.read(CHUNK_MAP, 0, len(MAP)) == MAP
    assert trio.current_time() - began_s > 2.0
    assert sum(store.full_downloads.values()) == 1


async def test_trickling_image_record_times_out(server, store, source):
    set_limits(source, lookup_s=0.3)
    server.always = rangeless.trickling(0.1)
    with trio.fail_after(25), pytest.raises(errors.SourceUnreachable, match="no answer within"):
        await source._copies.size_bytes(CHUNK_MAP)


@pytest.mark.expect_log("download failed")
@pytest.mark.parametrize(
    ("behaviour", "error", "why"),
    [
        (http_server.status(204), errors.ChunkRefused, "answered 204"),
        (http_server.status(403), errors.ChunkRefused, "refuses access"),
        (http_server.status(404), errors.ChunkMissing, "no such blob"),
        (http_server.gzipped, errors.ChunkMissing, "answered 206"),
    ],
)
async def test_response_other_than_the_whole_blob_is_refused(store, source, behaviour, error, why):
    store.streams = [behaviour]
    with pytest.raises(error, match=why):
        await source.read(CHUNK_MAP, 0, 4)


@pytest.mark.expect_log("download failed")
@pytest.mark.parametrize("announced", [True, False])
async def test_no_more_bytes_are_stored_than_the_record_says(
    server, store, source, announced, tmp_path
):
    path = artefact_path(server).lstrip("/")
    server.files[path] = MAP + b"more"
    if not announced:
        store.streams = [http_server.chunked] * 5
    with pytest.raises(errors.ChunkUnavailable):
        await source.read(CHUNK_MAP, len(MAP) - 1, 1)
    assert nameless_files(tmp_path) <= 1


@pytest.mark.expect_log("download failed.*its sha512 is .* not what Glance has")
async def test_artefact_with_a_wrong_hash_is_discarded(server, store, source):
    path = artefact_path(server, BOOT_IMAGE).lstrip("/")
    server.files[path] = BOOT[::-1]
    await source.read(BOOT_IMAGE, 0, len(BOOT))  # the reader verifies its data
    with trio.fail_after(10):
        while True:
            try:
                await source.read(BOOT_IMAGE, 0, 4)
            except errors.ChunkInvalid as error:
                assert "not what Glance has" in str(error)
                break
            await trio.sleep(0.01)
    server.files[path] = BOOT
    set_limits(source, retry_s=0.0)
    assert await source.read(BOOT_IMAGE, 0, len(BOOT)) == BOOT


async def test_chunk_read_from_a_download_is_verified(source):
    right = ids.Content(ids.cid_of(BOOT[10:20]))
    assert await source.read(BOOT_IMAGE, 10, 10, right) == BOOT[10:20]
    with pytest.raises(errors.ChunkInvalid):
        await source.read(BOOT_IMAGE, 11, 10, right)


async def test_replaced_artefact_is_found_after_the_recheck_time(server, source):
    assert await source.read(BOOT_IMAGE, 0, 64) == BOOT[:64]
    better = BOOT[::-1]
    fake_glance.fill(server.files, {**BLOBS, BOOT_IMAGE.file_name: better}, made="later")
    assert await source.read(BOOT_IMAGE, 0, 64) == BOOT[:64]
    set_limits(source, recheck_s=0.0)
    assert await source.read(BOOT_IMAGE, 0, 64) == better[:64]


async def test_attach_finds_the_current_artefact(server, source):
    assert await source.read(CHUNK_MAP, 0, 64) == MAP[:64]
    other = MAP[::-1]
    fake_glance.fill(server.files, {**BLOBS, CHUNK_MAP.file_name: other}, made="later")
    assert await source.size_bytes(CHUNK_MAP) == len(MAP)
    assert await source.read(CHUNK_MAP, 0, len(MAP)) == other


def deactivate(server):
    record = json.loads(server.files[RECORD])
    server.files[RECORD] = json.dumps({**record, "status": "deactivated"}).encode()


async def test_deactivated_image_is_refused(server, source):
    assert await source.size_bytes(CHUNK_MAP) == len(MAP)
    deactivate(server)
    with pytest.raises(errors.ChunkRefused, match="deactivated"):
        await source.size_bytes(CHUNK_MAP)


async def test_rejected_token_is_renewed(server, store, source):
    store.streams = [http_server.status(401)]
    assert await source.read(CHUNK_MAP, 0, len(MAP)) == MAP
    assert server.asked[-1]["x-auth-token"] == "token-2"


# The gateway comes first


def with_gateway(server, folder, nursery):
    return over(server, folder, nursery, gateway.GatewaySource(fake_glance.session(server.url)))


def let_gateway_answer(server, store, status):
    """Let the gateway refuse a map that Glance serves only whole; return the map's path."""
    path = artefact_path(server).lstrip("/")
    server.files[path.replace("v2/", "v1/")] = MAP
    store._refuse = lambda handler, asked: http_server.status(
        status if handler.path.startswith("/v1/") else 400
    )(handler, asked)
    return path


async def test_gateway_is_read_in_ranges_before_any_download(server, store, tmp_path, nursery):
    path = artefact_path(server).lstrip("/")
    server.files[path.replace("v2/", "v1/")] = MAP
    server.always = lambda handler, asked: (
        http_server.fine if handler.path.startswith("/v1/") else store
    )(handler, asked)
    source = with_gateway(server, tmp_path, nursery)
    assert await source.size_bytes(CHUNK_MAP) == len(MAP)
    assert await source.read(CHUNK_MAP, 5, 10) == MAP[5:15]
    assert not store.full_downloads
    await source.aclose()


@pytest.mark.expect_log("Source .* refuses the size .* 409")
async def test_blob_that_the_gateway_refuses_is_downloaded(server, store, tmp_path, nursery):
    path = let_gateway_answer(server, store, 409)
    source = with_gateway(server, tmp_path, nursery)
    assert await source.size_bytes(CHUNK_MAP) == len(MAP)
    before = sum(store.ranges.values())
    for offset in range(0, 100, 10):
        assert await source.read(CHUNK_MAP, offset, 10) == MAP[offset : offset + 10]
    assert sum(store.ranges.values()) == before  # no request after all have refused
    assert store.full_downloads == {f"/{path}": 1}
    await source.aclose()


@pytest.mark.allow_log("does not answer")
async def test_nothing_is_downloaded_while_the_gateway_is_down(server, store, tmp_path, nursery):
    let_gateway_answer(server, store, 503)
    source = with_gateway(server, tmp_path, nursery)
    with pytest.raises(errors.SourceUnreachable):
        await source.size_bytes(CHUNK_MAP)
    with pytest.raises(errors.SourceUnreachable):
        await source.read(CHUNK_MAP, 0, 4)
    assert not store.full_downloads
    await source.aclose()


async def test_attach_uses_range_reads_once_the_store_has_them_again(server, store, source):
    assert await source.read(CHUNK_MAP, 0, 4) == MAP[:4]
    server.always = http_server.fine
    assert await source.size_bytes(CHUNK_MAP) == len(MAP)
    before = server.body_bytes
    assert await source.read(CHUNK_MAP, 5, 10) == MAP[5:15]
    assert server.body_bytes - before == 10


@pytest.mark.parametrize(("blob", "data"), [(IMAGE, glance_records.BYTES), (BOOT_IMAGE, BOOT)])
async def test_guests_read_on_from_a_deactivated_image_that_cannot_be_attached(
    server, store, source, blob, data
):
    """Neither an attach attempt nor a look-up of another boot image disturbs them."""
    assert await source.size_bytes(blob) == len(data)
    assert await source.read(blob, 0, 4) == data[:4]
    deactivate(server)
    with pytest.raises(errors.ChunkRefused, match="deactivated"):
        await source.size_bytes(blob)
    set_limits(source, recheck_s=0.0)
    for _ in range(2):
        assert await source.read(blob, 100, 50) == data[100:150]
        assert (await source.find_blob(blob)).size_bytes == len(data)
    assert sum(store.full_downloads.values()) == 1
    with pytest.raises(errors.ChunkRefused, match="deactivated"):
        await source.size_bytes(blob)


# Images, which one host downloads for all

WORDS = "h7 reads it as one stream, for all hosts"


async def test_delegated_host_downloads_the_image(store, source):
    data = glance_records.BYTES
    assert await source.size_bytes(IMAGE) == len(data)
    assert source.source_access(IMAGE.image_id, 0) is placement.SourceAccess.WHOLE
    assert (
        source.source_access(IMAGE.image_id, base.AT_BOOT_IMAGE) is placement.SourceAccess.IN_PARTS
    )
    for offset, length in [(0, len(data)), (77, 1000)]:
        assert await source.read(IMAGE, offset, length) == data[offset : offset + length]
    assert store.full_downloads == {f"/{RECORD}/file": 1}
    assert source.source_access(IMAGE.image_id, 0) is placement.SourceAccess.WHOLE_HERE


async def test_other_hosts_refuse_the_image_and_name_the_delegated_host(
    server, store, tmp_path, nursery
):
    source = over(server, tmp_path, nursery, delegated_host=WORDS)
    assert await source.size_bytes(IMAGE) == len(glance_records.BYTES)
    with pytest.raises(errors.ChunkRefused, match=f"it cannot be read in ranges; {WORDS}"):
        await source.read(IMAGE, 0, 4)
    assert await source.read(CHUNK_MAP, 0, len(MAP)) == MAP
    assert store.full_downloads == {artefact_path(server): 1}
    await source.aclose()


async def test_other_hosts_read_only_the_beginning_of_a_boot_image(
    server, store, tmp_path, nursery
):
    source = over(server, tmp_path, nursery, delegated_host=WORDS, head_bytes=100_000)
    go_on = threading.Event()
    store.streams = [rangeless.held_back(200_000, go_on)]
    with trio.fail_after(10):
        assert await source.read(BOOT_IMAGE, 64, 1000) == BOOT[64:1064]
        assert await source.read(BOOT_IMAGE, 0, 100_000) == BOOT[:100_000]
        with pytest.raises(errors.ChunkRefused, match=WORDS):
            await source.read(BOOT_IMAGE, 99_999, 2)
    go_on.set()
    assert store.full_downloads == {artefact_path(server, BOOT_IMAGE): 1}
    await source.aclose()


async def test_newly_delegated_host_reads_the_whole_boot_image(server, store, tmp_path, nursery):
    source = over(server, tmp_path, nursery, delegated_host=WORDS, head_bytes=100_000)
    assert await source.read(BOOT_IMAGE, 0, 64) == BOOT[:64]
    source._copies._delegated_host = lambda image_id: ""  # by a new table
    assert await source.read(BOOT_IMAGE, 0, len(BOOT)) == BOOT
    await source.aclose()


async def test_read_far_ahead_of_the_download_is_refused_at_once(store, source):
    set_limits(source, near_bytes=1000, image_wait_s=60.0)
    go_on = threading.Event()
    store.streams = [rangeless.held_back(5000, go_on)]
    assert await source.read(IMAGE, 0, 500) == glance_records.BYTES[:500]
    with trio.fail_after(10), pytest.raises(errors.ChunkRefused, match="is not there yet"):
        await source.read(IMAGE, 9000, 1000)
    go_on.set()


async def test_read_of_the_boot_image_starts_the_image_download(server, store, source):
    await source.size_bytes(IMAGE)
    assert await source.read(BOOT_IMAGE, 0, 64) == BOOT[:64]
    with trio.fail_after(10):
        while not store.full_downloads[f"/{RECORD}/file"]:  # noqa: ASYNC110 - there is no event
            await trio.sleep(0.01)


async def test_boot_image_read_starts_no_download_of_an_image_with_ranges(server, store, source):
    server.always = lambda handler, asked: (
        http_server.fine if handler.path == f"/{RECORD}/file" else store
    )(handler, asked)
    await source.size_bytes(IMAGE)
    assert await source.read(BOOT_IMAGE, 0, len(BOOT)) == BOOT
    await trio.testing.wait_all_tasks_blocked(0.2)
    assert store.full_downloads == {artefact_path(server, BOOT_IMAGE): 1}


# Disk space


@pytest.mark.expect_log("download failed.*of which it may take half")
async def test_download_without_space_is_refused_with_its_size(source, tmp_path):
    set_limits(source, free_space_parts=1 << 60)
    why = f"needs {len(MAP)} bytes, and .* are free in {tmp_path}"
    with pytest.raises(errors.ChunkRefused, match=why):
        await source.read(CHUNK_MAP, 0, 4)
    assert nameless_files(tmp_path) == 0


@pytest.mark.expect_log("download failed.*of which it may take half")
async def test_concurrent_downloads_do_not_reserve_the_same_space(source, monkeypatch):
    """The first one has reserved its space, but has no file yet, when the second one checks."""
    looked, go_on, nameless = threading.Event(), threading.Event(), full_download._open_unlinked

    def slow(folder):
        looked.set()
        go_on.wait(30)
        return nameless(folder)

    monkeypatch.setattr(full_download, "_open_unlinked", slow)
    monkeypatch.setattr(download_source.DownloadSource, "_free_bytes", lambda self: 2 * len(MAP))

    async def read_map():
        assert await source.read(CHUNK_MAP, 0, len(MAP)) == MAP

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_map)
        await trio.to_thread.run_sync(looked.wait, 30)
        try:
            with pytest.raises(errors.ChunkRefused, match=f"and {len(MAP)} are free"):
                await source.read(BOOT_IMAGE, 0, 4)
        finally:
            go_on.set()


async def test_unused_download_is_evicted_for_another(source, tmp_path, monkeypatch):
    assert await source.read(CHUNK_MAP, 0, len(MAP)) == MAP
    await trio.testing.wait_all_tasks_blocked(0.2)  # its hash is computed
    free = len(MAP)  # too little while the first download exists

    def free_bytes(self):
        return 2 * len(BOOT) if nameless_files(tmp_path) == 0 else free

    monkeypatch.setattr(download_source.DownloadSource, "_free_bytes", free_bytes)
    assert await source.read(BOOT_IMAGE, 0, len(BOOT)) == BOOT
    assert nameless_files(tmp_path) == 1


async def test_idle_download_expires(source, tmp_path):
    set_limits(source, sweep_interval_s=0.01)
    assert await source.read(CHUNK_MAP, 0, len(MAP)) == MAP
    await trio.sleep(0.1)
    assert nameless_files(tmp_path) == 1
    set_limits(source, idle_expiry_s=0.01)
    await all_gone(tmp_path)
    assert await source.read(CHUNK_MAP, 0, 4) == MAP[:4]


@pytest.mark.expect_log("download failed.*No such file")
async def test_missing_folder_is_reported(server, store, tmp_path, nursery):
    source = over(server, tmp_path / "gone", nursery)
    with pytest.raises(errors.ChunkRefused, match="No such file"):
        await source.read(CHUNK_MAP, 0, 4)


@pytest.mark.expect_log("download failed.*cannot be written: File too large")
async def test_failed_write_of_a_download_is_reported(source):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, before[1]))
    try:
        assert await source.read(CHUNK_MAP, 0, 4) == MAP[:4]
        with pytest.raises(errors.ChunkRefused, match="File too large"):
            await source.read(CHUNK_MAP, 3 * MIB, 4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_readers_fail_when_the_source_is_closed(store, source):
    go_on = threading.Event()
    store.streams = [rangeless.held_back(100_000, go_on)]
    reported = []

    async def read():
        with pytest.raises(errors.SourceUnreachable):
            await source.read(CHUNK_MAP, MIB, 4)
        reported.append(True)

    async with trio.open_nursery() as nursery:
        await source.read(CHUNK_MAP, 0, 4)
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        await source.aclose()
    assert reported
    go_on.set()
