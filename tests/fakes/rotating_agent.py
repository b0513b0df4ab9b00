# SPDX-License-Identifier: Apache-2.0
"""acstor-agent on an emulated rotating disk: ``python -m tests.fakes.rotating_agent ARGUMENTS``.

Each read and write of slab files takes as long as the model of a disk says, in
real time and one at a time, and nothing is found in the page cache.  Workers
are forked from the agent, so they are on the same disk.
"""

import sys
import threading
import time
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

from acstor_agent.cache import slab_io
from acstor_agent.cmd import agent
from tests.fakes import rotating_disk

SLAB_BYTES = 1 << 30
"""Slab files lie this far from each other at least."""


class RotatingStore:
    """Keeps the one who uses the disk waiting."""

    def __init__(self) -> None:
        self._disk = rotating_disk.RotatingDisk()
        self._lock = threading.Lock()

    def use(self, slab_no: int, offset: int, length: int) -> None:
        with self._lock:
            place = slab_no * SLAB_BYTES + offset
            time.sleep(self._disk.serve_s(place, length, time.monotonic()))


def install(store: RotatingStore) -> None:
    """Put a disk under the slab files of this process."""
    read, write = slab_io.SlabIo.read, slab_io.SlabIo._write_run

    def slow_read(
        self: slab_io.SlabIo, parts: Iterable[slab_io.ReadPart], buffer: memoryview
    ) -> Any:
        wanted = list(parts)
        for part in wanted:
            if part.data is None:
                slot = part.slot
                store.use(slot.slab.number, slot.offset + part.start, part.stop - part.start)
        return read(self, wanted, buffer)

    def slow_write(self: slab_io.SlabIo, run: Sequence[slab_io.WriteJob]) -> None:
        first = run[0].slot
        length = sum(len(job.data or b"") for job in run)
        store.use(first.slab.number, first.offset, length)
        write(self, run)

    def nothing_cached(
        self: slab_io.SlabIo, parts: Sequence[slab_io.Part], buffer: memoryview
    ) -> bool:
        return False

    slab_io.SlabIo.read = slow_read  # type: ignore[method-assign]
    slab_io.SlabIo._write_run = slow_write  # type: ignore[method-assign]
    slab_io.SlabIo.read_nowait = nothing_cached  # type: ignore[method-assign]


if __name__ == "__main__":
    install(RotatingStore())
    sys.exit(agent.main())
