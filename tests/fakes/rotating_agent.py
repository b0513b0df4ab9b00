# SPDX-License-Identifier: Apache-2.0
"""acstor-agent on an emulated rotating disk.

    python -m tests.fakes.rotating_agent COUNTS ARGUMENTS...

Each read and write of slab files and of guests' disk files takes the time of a disk model, in
real time and one at a time, without a page cache.  Workers are forked from the agent, so they
share the disk.  The file COUNTS has the disk's counters (see :func:`counts`).
"""

import mmap
import pathlib
import struct
import sys
import threading
import time
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

from acstor_agent.cache import slab_io
from acstor_agent.cmd import agent
from acstor_agent.core.disk_scheduling import scheduler
from acstor_agent.disks import disk_files
from tests.fakes import rotating_disk

SLAB_BYTES = 1 << 30
"""Distance of slab files on the disk."""
DISKS_AT = 100 << 30
DISK_BYTES = 12 << 30
"""Distance of guests' disks, which follow the slab files."""
COUNTED = ("zero", "near", "far", "busy_us")
_COUNTS = struct.Struct("<4q")


class RotatingStore:
    """Delays each disk request by the model's time.

    :param counts_file: its counters: seeks by distance, and busy time
    """

    def __init__(self, counts_file: pathlib.Path) -> None:
        self._disk = rotating_disk.RotatingDisk()
        self._lock = threading.Lock()
        self._head = 0
        self._disks: dict[pathlib.Path, int] = {}
        counts_file.write_bytes(bytes(_COUNTS.size))
        with counts_file.open("r+b") as file:
            self._counts = mmap.mmap(file.fileno(), _COUNTS.size)

    def use(self, place: int, length: int) -> None:
        """Wait for a request."""
        with self._lock:
            took_s = self._disk.serve_s(place, length, time.monotonic())
            self._count(abs(place - self._head), took_s)
            self._head = place + length
            time.sleep(took_s)

    def _count(self, distance: int, took_s: float) -> None:
        counts = list(_COUNTS.unpack(self._counts[:]))
        counts[0 if not distance else 1 if distance <= scheduler.NEAR_BYTES else 2] += 1
        counts[3] += int(took_s * 1e6)
        self._counts[:] = _COUNTS.pack(*counts)

    def use_slab(self, slab_no: int, offset: int, length: int) -> None:
        """Wait for access to a part of a slab file."""
        self.use(slab_no * SLAB_BYTES + offset, length)

    def use_disk(self, path: pathlib.Path, offset: int, length: int) -> None:
        """Wait for access to a part of a guest's disk; disks lie in order of first use."""
        number = self._disks.setdefault(path, len(self._disks))
        self.use(DISKS_AT + number * DISK_BYTES + offset, length)


def counts(file: pathlib.Path) -> dict[str, int]:
    """Return a disk's counters: no, short and long seeks, and busy time in us."""
    return dict(zip(COUNTED, _COUNTS.unpack(file.read_bytes()), strict=True))


def install(store: RotatingStore) -> None:
    """Emulate a disk under this process's slab files and guests' disks."""
    _under_slabs(store)
    _under_disks(store)


def _under_slabs(store: RotatingStore) -> None:
    read, write = slab_io.SlabIo.read_slots, slab_io.SlabIo._write_run

    def slow_read(
        self: slab_io.SlabIo, parts: Iterable[slab_io.ReadPart], buffer: memoryview
    ) -> Any:
        wanted = list(parts)
        for part in wanted:
            if part.data is None:
                slot = part.slot
                store.use_slab(slot.slab.number, slot.offset + part.start, part.stop - part.start)
        return read(self, wanted, buffer)

    def slow_write(self: slab_io.SlabIo, run: Sequence[slab_io.WriteJob]) -> None:
        first = run[0].slot
        length = sum(len(job.data or b"") for job in run)
        store.use_slab(first.slab.number, first.offset, length)
        write(self, run)

    slab_io.SlabIo.read_slots = slow_read  # type: ignore[method-assign]
    slab_io.SlabIo._write_run = slow_write  # type: ignore[method-assign]
    slab_io.SlabIo.read_slots_nowait = _nothing_cached  # type: ignore[method-assign]


def _under_disks(store: RotatingStore) -> None:
    read, write = disk_files.DiskFiles.read, disk_files.DiskFiles.write

    def slow_read(self: disk_files.DiskFiles, into: memoryview, offset: int) -> None:
        store.use_disk(self.failed_path, offset, len(into))
        read(self, into, offset)

    def slow_write(
        self: disk_files.DiskFiles,
        parts: list[bytes | bytearray],
        offset: int,
        fresh: Iterable[tuple[int, int]],
    ) -> None:
        store.use_disk(self.failed_path, offset, sum(map(len, parts)))
        write(self, parts, offset, fresh)

    disk_files.DiskFiles.read = slow_read  # type: ignore[method-assign]
    disk_files.DiskFiles.write = slow_write  # type: ignore[method-assign]
    disk_files.DiskFiles.read_nowait = _nothing_cached  # type: ignore[method-assign]


def _nothing_cached(self: object, *_: object) -> bool:
    return False


if __name__ == "__main__":
    install(RotatingStore(pathlib.Path(sys.argv.pop(1))))
    sys.exit(agent.main())
