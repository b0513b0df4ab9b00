# SPDX-License-Identifier: Apache-2.0
"""Boot traces in a folder, for hosts without a message bus: one JSON file each."""

import logging
import pathlib

import msgspec
import trio
import xxhash

from acstor_common.util import atomic_file
from acstor_common.wire import trace_message

LOG = logging.getLogger(__name__)

FILES_LIMIT = 64
UNWRITTEN = 16  # traces in memory, of about 10 KiB each
ENDING = ".actrace"


class TraceSpool:
    """The folder; when it is full, a new trace replaces the oldest. Keep :meth:`run` running."""

    def __init__(self, folder: pathlib.Path) -> None:
        atomic_file.remove_leftovers(folder)
        self._folder = folder
        self._wishes, self._taken = trio.open_memory_channel[trace_message.BootTrace](UNWRITTEN)

    def queue_trace(self, trace: trace_message.BootTrace) -> None:
        """Queue a trace to be written; a trace beyond UNWRITTEN is lost."""
        try:
            self._wishes.send_nowait(trace)
        except trio.WouldBlock:
            LOG.warning("boot trace of image %s is lost: the disk is slow", trace.image_id)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write queued traces in a thread until cancelled."""
        task_status.started()
        async for trace in self._taken:
            await trio.to_thread.run_sync(self.write, trace)

    def write(self, trace: trace_message.BootTrace) -> None:
        """Write a trace; blocks. A failure is logged and loses the trace."""
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            files = sorted(self._folder.glob(f"*{ENDING}"), key=lambda path: path.stat().st_mtime)
            for old in files[: max(0, len(files) + 1 - FILES_LIMIT)]:
                old.unlink()
            raw = msgspec.json.encode(trace)
            name = f"{trace.image_id}-{xxhash.xxh3_64_hexdigest(raw)}{ENDING}"
            with atomic_file.atomic_write(self._folder / name) as file:
                file.write(raw)
        except OSError as e:
            LOG.warning("boot trace of image %s is lost: %s", trace.image_id, e)
