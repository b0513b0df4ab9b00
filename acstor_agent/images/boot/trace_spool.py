# SPDX-License-Identifier: Apache-2.0
"""Boot traces in a folder, for hosts without a message bus: one JSON file each, some at most."""

import contextlib
import logging
import pathlib

import msgspec
import trio
import xxhash

from acstor_common.util import atomic_file
from acstor_common.wire import trace_message

LOG = logging.getLogger(__name__)

FILES_LIMIT = 64
UNWRITTEN = 16
"""Traces in memory, each of some 10 KiB."""
ENDING = ".actrace"


class TraceSpool:
    """The folder; a trace more than it holds takes the place of the oldest.

    Keep :meth:`run` running.  What it has not written when the process ends is lost.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        with contextlib.suppress(OSError):  # each trace says so when it cannot be written
            folder.mkdir(mode=0o700, exist_ok=True)
        atomic_file.remove_leftovers(folder)
        self._folder = folder
        self._wishes, self._taken = trio.open_memory_channel[trace_message.BootTrace](UNWRITTEN)

    def put(self, trace: trace_message.BootTrace) -> None:
        """Have a trace written soon; one more than UNWRITTEN is lost."""
        try:
            self._wishes.send_nowait(trace)
        except trio.WouldBlock:
            LOG.warning("boot trace of image %s is lost: the disk is slow", trace.image_id)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write traces in a thread, for ever: each waits for the disk."""
        task_status.started()
        async for trace in self._taken:
            await trio.to_thread.run_sync(self.write, trace)

    def write(self, trace: trace_message.BootTrace) -> None:
        """Write a trace and wait for the disk; one that is full costs the trace."""
        try:
            files = sorted(self._folder.glob(f"*{ENDING}"), key=lambda path: path.stat().st_mtime)
            for old in files[: max(0, len(files) + 1 - FILES_LIMIT)]:
                old.unlink()
            raw = msgspec.json.encode(trace)
            name = f"{trace.image_id}-{xxhash.xxh3_64_hexdigest(raw)}{ENDING}"
            with atomic_file.atomic_write(self._folder / name) as file:
                file.write(raw)
        except OSError as e:
            LOG.warning("boot trace of image %s is lost: %s", trace.image_id, e)
