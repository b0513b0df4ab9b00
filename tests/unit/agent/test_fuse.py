# SPDX-License-Identifier: Apache-2.0
"""FUSE operations without a kernel: cases that are hard to reach on a real mount."""

import contextlib
import os

import pyfuse3
import pytest
import trio

from acstor_agent.core.mount import inodes
from acstor_agent.disks import disks
from acstor_agent.images.boot import boot_timelines
from acstor_agent.images.image import usage
from acstor_agent.mount import folder_entries
from acstor_agent.mount import fuse
from acstor_common import errors
from acstor_common.util import log_limit
from tests.fakes import one_host

IMAGE = one_host.IMAGE
DATA = one_host.image_bytes(4 * one_host.CHUNK)


@fuse._answers_errors
async def read(operations, handle, offset, size):
    raise errors.ChunkMissing(f"byte {offset}", "the source")


@pytest.mark.expect_log("read .* byte 0 is not available")
async def test_log_of_repeated_read_failures_is_rate_limited(caplog, monkeypatch, autojump_clock):
    monkeypatch.setattr(fuse, "_log_limit", log_limit.LogLimit(fuse.LOG_INTERVAL_S))
    for offset in range(500):
        with pytest.raises(pyfuse3.FUSEError):
            await read(None, 7, offset, 4096)
    with pytest.raises(pyfuse3.FUSEError):
        await read(None, 8, 0, 4096)  # another guest's
    assert len(caplog.records) == 2
    await trio.sleep(fuse.LOG_INTERVAL_S)
    with pytest.raises(pyfuse3.FUSEError):
        await read(None, 7, 0, 4096)
    assert "(and 499 like it)" in caplog.records[-1].getMessage()


@contextlib.asynccontextmanager
async def mounted(folder):
    """Yield the FUSE operations of a host; the test plays the kernel."""
    async with one_host.one_host(folder, data=DATA) as host:
        known = inodes.Inodes(inodes.keyed(bytes(inodes.KEY_BYTES)))
        operations = fuse.MirrorOperations(
            host.mirrors,
            disks.Disks(folder / "disks", host.opened),
            host.cache,
            known,
            host.opened,
            fuse.OpenObservers(
                usage.ImageUsage(host.mirrors, set, set), None, boot_timelines.BootTimelines()
            ),
            one_host.DEADLINE_S,
        )
        yield host, operations, known


async def look_up(operations):
    context = pyfuse3.RequestContext()
    entry = await operations.lookup(folder_entries.IMAGES, f"{IMAGE}.raw".encode(), context)
    return entry.st_ino, (await operations.open(entry.st_ino, os.O_RDONLY, context)).fh


async def test_open_handle_still_reads_after_its_image_is_detached(tmp_path):
    """A process that the agent cannot see may have it open."""
    async with mounted(tmp_path) as (host, operations, _):
        _, handle = await look_up(operations)
        assert bytes(await operations.read(handle, 0, 10)) == DATA[:10]
        host.mirrors.detach_image(IMAGE)
        assert bytes(await operations.read(handle, 10, 10)) == DATA[10:20]
        assert host.mirrors.list_attached() == [IMAGE]
        await operations.release(handle)


async def test_inode_is_dropped_once_image_is_detached_and_kernel_forgot_it(
    tmp_path,
):
    async with mounted(tmp_path) as (host, operations, known):
        inode, handle = await look_up(operations)
        await operations.release(handle)
        await operations.forget([(inode, 1)])  # of a name that it does not look up again
        assert known.opening_of(inode).image_id == IMAGE
        host.mirrors.detach_image(IMAGE)
        assert known.opening_of(inode).image_id == IMAGE  # the kernel may still ask by it
        await operations.forget([(inode, 1), (pyfuse3.InodeT(12345), 7)])
        assert (known.opening_of(inode), known.openings, known._owners) == (None, {}, {})
        assert (await look_up(operations))[0] == inode
