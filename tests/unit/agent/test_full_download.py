# SPDX-License-Identifier: Apache-2.0
"""Full downloads: cancelled readers leave no hole; a thread closes the file."""

import os
import random
import threading

import trio
import trio.testing

from acstor_agent.sources import base
from acstor_agent.sources import driver
from acstor_agent.sources import glance
from acstor_agent.sources.wrappers import full_download
from acstor_common.formats import chunk_map
from acstor_common.model import ids
from tests.fakes import glance_records

IMAGE = base.Blob(ids.ImageId(glance_records.IMAGE_ID), base.BlobKind.IMAGE)
DATA = random.Random(1).randbytes(3000)


async def test_reader_cancelled_before_its_write_leaves_no_hole(tmp_path, nursery):
    place = glance.BlobLocation(IMAGE.image_id, len(DATA), chunk_map.UNKNOWN_OS_HASH)
    copy = full_download.FullDownload(IMAGE, place, len(DATA), "Glance", trio.CapacityLimiter(1))
    has_begun, go_on = trio.Event(), trio.Event()

    async def pour(take):
        await take(DATA[:2000])  # fewer than are written at a time
        has_begun.set()
        await go_on.wait()
        await take(DATA[2000:])

    async def bring():
        with copy.download_during():
            await copy.download_all(tmp_path, random.Random(1), pour)

    nursery.start_soon(bring)
    await has_begun.wait()
    reader = trio.CancelScope()

    async def wait():
        with copy.hold_open(), reader:
            await copy.wait_for(1000, trio.current_time() + 60)

    async with copy._writing:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
    reader.cancel()  # it already has its turn to write
    await trio.testing.wait_all_tasks_blocked()
    go_on.set()
    with copy.hold_open(), trio.fail_after(10):
        await copy.wait_for(len(DATA), trio.current_time() + 5)
        run = driver.BlobRun(IMAGE, [base.BlobPiece(0, len(DATA))], "Glance", lambda answers: None)
        assert await copy.read_into(run, 0) == len(DATA)
    assert bytes(run.buffers[0]) == DATA
    copy.drop()


async def test_file_of_download_is_closed_outside_the_event_loop_thread(tmp_path, monkeypatch):
    place = glance.BlobLocation(IMAGE.image_id, len(DATA), chunk_map.UNKNOWN_OS_HASH)
    copy = full_download.FullDownload(IMAGE, place, len(DATA), "Glance", trio.CapacityLimiter(1))
    with copy.download_during():
        await copy.download_all(tmp_path, random.Random(1), lambda take: take(DATA))
    descriptor, here, closers, close = copy._descriptor, threading.get_ident(), [], os.close

    def noting(number):
        closers.append((number, threading.get_ident() == here))
        close(number)

    monkeypatch.setattr(os, "close", noting)
    copy.drop()
    with trio.fail_after(10):
        await copy.wait_deleted()
    assert (descriptor, False) in closers and (descriptor, True) not in closers
