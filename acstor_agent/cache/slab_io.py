# SPDX-License-Identifier: Apache-2.0
"""Reads and writes chunks in slab files; checksums verify each read (core/cache/checksums.py).

A write clears the record, writes data and checksums, then writes the record; so after a kill at any
point each slot is free or complete. Checksums are not memory-mapped: a bad page would kill the
process (SIGBUS), and a missing one would block the event loop.
"""

import errno
import itertools
import os
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

from oslo_log import log as logging

from acstor_agent.core.cache import cache_slab
from acstor_agent.core.cache import cache_slot
from acstor_agent.core.cache import checksums

LOG = logging.getLogger(__name__)

BLOCK_BYTES = checksums.BLOCK_BYTES
are_right = checksums.are_right


class WriteJob(NamedTuple):
    """A snapshot of a slot to write; without ``data`` only its record, cleared if ``is_gone``."""

    slot: cache_slot.Slot
    data: cache_slot.Data | None
    keep_class: cache_slot.KeepClass
    is_gone: bool

    def is_followed_by(self, other: "WriteJob") -> bool:
        """Return whether both jobs can be written by the same calls."""
        mine, its = self.slot, other.slot
        is_whole = self.data is None or mine.length == mine.slab.layout.slot_bytes
        is_alike = (self.data is None, self.is_gone) == (other.data is None, other.is_gone)
        return is_whole and is_alike and mine.slab is its.slab and mine.slot_no + 1 == its.slot_no


Part = tuple[cache_slot.Slot, int, int]
"""A slot, and start and stop of the wanted bytes of its chunk."""


def where(slot: cache_slot.Slot) -> tuple[object, int, int]:
    """Return the name of a slot's file, the slot's offset, and the file's length."""
    return ("slab", slot.slab.number), slot.offset, slot.slab.layout.file_bytes


class ReadPart(NamedTuple):
    """Bytes ``start`` to ``stop`` of a chunk; ``data`` if they are still in memory."""

    slot: cache_slot.Slot
    data: cache_slot.Data | None
    start: int
    stop: int


class SlabIo:
    """Reads and writes slots; blocks, except for ``nowait`` methods."""

    def __init__(self, fds: Mapping[int, int]) -> None:
        self._fds = fds
        self._nowait_flags = os.RWF_NOWAIT

    def write(self, jobs: Sequence[WriteJob]) -> Iterator[tuple[WriteJob, OSError]]:
        """Write the jobs, adjacent ones together; yield those that failed."""
        for run in _runs(jobs):
            try:
                self._write_run(run)
            except OSError as exc:
                if len(run) == 1:
                    yield run[0], exc
                else:
                    for job in run:
                        yield from self.write([job])

    def _write_run(self, run: Sequence[WriteJob]) -> None:
        first = run[0]
        slab = first.slot.slab
        fd = self._fds[slab.number]
        table_offset = cache_slab.record_offset(first.slot.slot_no)
        if first.is_gone or first.data is not None:
            write(fd, [bytes(cache_slab.RECORD_BYTES * len(run))], table_offset)
        if first.is_gone:
            return
        if first.data is not None:
            write(fd, [job.data for job in run if job.data is not None], first.slot.offset)
            sums_offset = slab.sums_offset + first.slot.slot_no * slab.sums_bytes
            write(fd, [_sums_of(job) for job in run], sums_offset)
        write(fd, [_record_of(job) for job in run], table_offset)

    def read_slots(self, parts: Iterable[ReadPart], buffer: memoryview) -> list[cache_slot.Slot]:
        """Fill ``buffer`` with ``parts``, back to back; return bad slots, with invalid bytes."""
        bad: list[cache_slot.Slot] = []
        end = 0
        for part in parts:
            begin, end = end, end + part.stop - part.start
            into = buffer[begin:end]
            if part.data is not None:
                into[:] = memoryview(part.data)[part.start : part.stop]
                continue
            try:
                is_right = self._read_run([(part.slot, part.start, part.stop)], into, 0)
            except OSError as exc:
                LOG.warning("Chunk %s cannot be read: %s", part.slot.cid.hex(), exc)
                is_right = False
            if not is_right:
                bad.append(part.slot)
        return bad

    def read_slots_nowait(self, parts: Sequence[Part], buffer: memoryview) -> bool:
        """Do as :meth:`read_slots`; return False for bad bytes, or any outside the page cache."""
        try:
            if len(parts) == 1:
                return self._read_part_nowait(parts[0], buffer)
            return self._read_parts_nowait(parts, buffer)
        except BlockingIOError:
            return False
        except OSError as exc:
            if exc.errno == errno.EOPNOTSUPP:
                self._nowait_flags = 0
            return False

    def _read_part_nowait(self, part: Part, into: memoryview) -> bool:
        slot, start, stop = part
        if slot.is_gone:
            return False
        if slot.data is not None:
            into[:] = memoryview(slot.data)[start:stop]
            return True
        return self._nowait_flags != 0 and self._read_run([part], into, self._nowait_flags)

    def _read_parts_nowait(self, parts: Sequence[Part], buffer: memoryview) -> bool:
        first, begin, end = 0, 0, 0  # the run's first part, and its range in the buffer
        slab, next_offset = None, -1
        for index, (slot, start, stop) in enumerate(parts):
            offset = slot.offset
            if start or offset != next_offset or slot.slab is not slab or slot.data is not None:
                run = parts[first:index]
                if run and not self._read_run_nowait(run, buffer[begin:end]):
                    return False
                first, begin, slab = index, end, slot.slab
            end += stop - start
            next_offset = offset + stop
            if slot.data is not None:
                buffer[begin:end] = memoryview(slot.data)[start:stop]
                first, begin, next_offset = index + 1, end, -1
        return self._read_run_nowait(parts[first:], buffer[begin:end])

    def _read_run_nowait(self, run: Sequence[Part], into: memoryview) -> bool:
        if not run:
            return True
        if not self._nowait_flags or any([slot.is_gone for slot, _, _ in run]):
            return False
        return self._read_run(run, into, self._nowait_flags)

    def _read_run(self, run: Sequence[Part], into: memoryview, flags: int) -> bool:
        first, start, _ = run[0]
        last, _, stop = run[-1]
        if start % BLOCK_BYTES or (stop % BLOCK_BYTES and stop != last.length):
            return self._read_wider(run, into, flags)
        fd = self._fds[first.slab.number]
        if os.preadv(fd, [into], first.offset + start, flags) != len(into):
            return False
        return self._is_right(run, into, flags)

    def _read_wider(self, run: Sequence[Part], into: memoryview, flags: int) -> bool:
        """Read a run that begins or ends within a block, with these blocks as a whole."""
        first, start, _ = run[0]
        last, last_start, stop = run[-1]
        begin, end = checksums.widened(start, stop, last.length)
        if end < stop:
            return False  # the requested length is wrong
        skip = start - begin
        view = memoryview(bytearray(skip + len(into) + end - stop))
        wider = [*run[:-1], (last, last_start, end)]
        wider[0] = (first, begin, wider[0][2])
        is_right = self._read_run(wider, view, flags)
        into[:] = view[skip : skip + len(into)]
        return is_right

    def _is_right(self, run: Sequence[Part], view: memoryview, flags: int) -> bool:
        (first, start, _), (last, _, stop) = run[0], run[-1]
        slab, of_slot = first.slab, first.slab.sums_bytes
        skip, length = checksums.table_range(start, stop)
        sums = bytearray((last.slot_no - first.slot_no) * of_slot + length - skip)
        offset = slab.sums_offset + first.slot_no * of_slot + skip
        if os.preadv(self._fds[slab.number], [sums], offset, flags) != len(sums):
            return False
        if first is last:
            return are_right(view, start, first.length, first.cid, sums, 0)
        at, sums_at = 0, 0
        for slot, start, stop in run:
            size = stop - start
            if not are_right(view[at : at + size], start, slot.length, slot.cid, sums, sums_at):
                return False
            at += size
            sums_at += of_slot - skip
            skip = 0
        return True


def _runs(jobs: Sequence[WriteJob]) -> Iterator[list[WriteJob]]:
    ordered = sorted(jobs, key=lambda job: (job.slot.slab.number, job.slot.slot_no))
    run = ordered[:1]
    for before, job in itertools.pairwise(ordered):
        if not before.is_followed_by(job):
            yield run
            run = []
        run.append(job)
    if run:
        yield run


def _sums_of(job: WriteJob) -> bytes:
    slot = job.slot
    return checksums.table_of(job.data or b"", slot.cid, slot.slab.layout.slot_bytes)


def _record_of(job: WriteJob) -> bytes:
    slot = job.slot
    return cache_slab.pack_record(slot.cid, slot.sequence, slot.length, job.keep_class)


def write(fd: int, pieces: Sequence[bytes | bytearray | memoryview], offset: int) -> None:
    """Write all of ``pieces``, back to back, or raise OSError if the write was incomplete."""
    if os.pwritev(fd, pieces, offset) != sum(map(len, pieces)):
        raise OSError(errno.EIO, "short write")
