# SPDX-License-Identifier: Apache-2.0
"""Reads a snapshot's changed chunks, stores them at holders, builds entries.

A chunk is read if the dirty bitmap marks it, if the overlay's tables have it and the last manifest
does not, or if a holder lacks it.  The tables may lack unflushed writes; their chunks are read once
the tables have them, whatever the bitmap says.
"""

import functools
import heapq
import itertools
import operator
import threading
from collections.abc import Callable
from collections.abc import Container
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Final
from typing import NamedTuple
from typing import Protocol

from acstor_checkpoint.capture import chunk_runs
from acstor_checkpoint.capture import nbd_client
from acstor_common import errors
from acstor_common.formats import checkpoint_encryption
from acstor_common.formats import checkpoint_manifest
from acstor_common.model import geometry
from acstor_common.model import ids

BATCH_BYTES: Final = 4 * geometry.MIB
"""Bytes of the disk that are sealed and sent at a time, and held in memory."""
_NOT_READ: Final = ids.Cid(b"")


class DiskTooLarge(errors.Unusable):
    """The differences of a disk exceed a manifest."""

    def __init__(self, most_bytes: int) -> None:
        why = f"it differs from its image by more than {most_bytes >> 30} GiB"
        super().__init__("a disk", why, "Rebuild the server from an image that has what it needs.")


class SnapshotDisk(Protocol):
    """A snapshot of a disk."""

    size_bytes: int

    def read_into(self, view: memoryview, at: int) -> None:
        """Fill ``view``, of at most ``nbd_client.MAX_READ_BYTES``."""


class HolderGroup(Protocol):
    """All holders of one disk's checkpoints."""

    def missing_names(self, names: Iterable[ids.Cid]) -> Container[ids.Cid]:
        """Return those ``names`` (ascending) that any holder lacks, or a superset."""

    def put(
        self, names: Sequence[ids.Cid], sealed: Callable[[ids.Cid], bytes], plain_bytes: int
    ) -> int:
        """Store chunks at every holder; return the bytes sent after all acknowledged.

        :param names: ascending
        :param sealed: returns a chunk that a holder lacks; called by any thread
        :param plain_bytes: bytes read of the disk for them
        """


class ReadLimit(Protocol):
    """Limits the rate of reading a disk."""

    def spend_bytes(self, count_bytes: int) -> None:
        """Wait until the bytes may be read."""


class ChangedRanges(NamedTuple):
    """Ordered ranges (offset, length) to read, produced on demand; a second call may yield more."""

    before: checkpoint_manifest.Manifest | None  # None: read all that the overlay has
    dirty: Callable[[], Iterable[tuple[int, int]]]  # the dirty bitmap since ``before``
    allocated: Callable[[], Iterable[tuple[int, int]]]  # yields ranges of the overlay's tables


class DiskCapture:
    """Captures one checkpoint, and counts bytes.

    Chunks that were not read (``unread_bytes``) are in no entry, so the next capture reads them.

    :param chunk_bytes: of the base's chunk map
    :param batch_bytes: of the disk, sealed and sent at a time, and held in memory
    """

    def __init__(
        self,
        disk: SnapshotDisk,
        chunk_bytes: int,
        seal: checkpoint_encryption.Seal,
        group: HolderGroup,
        rate_limit: ReadLimit,
        should_stop: Callable[[], bool] = lambda: False,
        batch_bytes: int = BATCH_BYTES,
        max_entries: int = checkpoint_manifest.MAX_ENTRIES,
    ) -> None:
        self._disk, self._seal, self._group, self._rate_limit = disk, seal, group, rate_limit
        self._should_stop, self.unread_bytes = should_stop, 0
        self._batch_bytes, self._max_entries = batch_bytes, max_entries
        self.cut = geometry.Geometry(disk.size_bytes, chunk_bytes)
        self.changed_bytes, self.read_bytes, self.sent_bytes = 0, 0, 0

    def iter_entries(self, changed: ChangedRanges) -> Iterator[checkpoint_manifest.Entry]:
        """Yield ordered differences from the base that all holders acknowledged.

        :raises DiskTooLarge: too many; nothing was sent
        :raises errors.AcstorError: the disk is unreadable, or a holder failed
        """
        self._check_count(changed)
        fresh = self._read_entries(self._runs(changed))
        named = itertools.takewhile(
            lambda entry: entry.chunk_no < self.cut.chunk_count, changed.before or ()
        )
        before = -1
        for entry in heapq.merge(fresh, named, key=operator.attrgetter("chunk_no")):
            # The first of two equal numbers is the new one.
            if entry.chunk_no != before and entry.cid != _NOT_READ:
                self.changed_bytes += self.cut.chunk_length(entry.chunk_no)
                yield entry
            before = entry.chunk_no

    def _check_count(self, changed: ChangedRanges) -> None:
        limit = self._max_entries
        if self.cut.chunk_count <= limit:
            return
        before = changed.before or ()
        allocated, dirty = (chunk_runs.chunks_of(ranges(), self.cut) for ranges in changed[1:])
        count = sum(entry.chunk_no < self.cut.chunk_count for entry in before)
        for first, stop in chunk_runs.added_chunks(chunk_runs.merge_runs(allocated, dirty), before):
            count += stop - first
            if count > limit:
                raise DiskTooLarge(limit * self.cut.chunk_bytes)

    def _runs(self, changed: ChangedRanges) -> Iterator[chunk_runs.ChunkRun]:
        allocated = chunk_runs.chunks_of(changed.allocated(), self.cut)
        before = changed.before
        if before is None:
            return allocated
        dirty = chunk_runs.chunks_of(changed.dirty(), self.cut)
        lacking = self._group.missing_names(before.iter_names())
        return self._clip(
            chunk_runs.merge_runs(
                dirty,
                chunk_runs.added_chunks(allocated, before),
                chunk_runs.chunks_named(lacking, before),
                chunk_runs.resized_chunks(before.subject.cut, self.cut),
            )
        )

    def _clip(self, runs: Iterable[chunk_runs.ChunkRun]) -> Iterator[chunk_runs.ChunkRun]:
        for first, stop in runs:
            if first < self.cut.chunk_count:
                yield chunk_runs.ChunkRun(first, min(stop, self.cut.chunk_count))

    def _read_entries(
        self, runs: Iterable[chunk_runs.ChunkRun]
    ) -> Iterator[checkpoint_manifest.Entry]:
        numbers = itertools.chain.from_iterable(itertools.starmap(range, runs))
        count = max(1, self._batch_bytes // self.cut.chunk_bytes)
        buffer = memoryview(bytearray(count * self.cut.chunk_bytes))
        while batch := list(itertools.islice(numbers, count)):
            chunks = self._read(batch, buffer)
            found = [
                (checkpoint_manifest.Entry(chunk_no, self._seal.chunk_name(plain)), plain)
                for chunk_no, plain in chunks
            ]
            size = sum(len(plain) for _, plain in found)
            self._store({entry.cid: plain for entry, plain in found}, size)
            yield from (entry for entry, _ in found)
            if self._should_stop():
                break
        for chunk_no in numbers:
            self.unread_bytes += self.cut.chunk_length(chunk_no)
            yield checkpoint_manifest.Entry(chunk_no, _NOT_READ)

    def _read(self, batch: Sequence[int], buffer: memoryview) -> list[tuple[int, memoryview]]:
        """Read chunks into a buffer, adjacent ones at once; return (number, bytes)."""
        chunks = []
        for _, row in itertools.groupby(enumerate(batch), lambda item: item[1] - item[0]):
            numbers = [chunk_no for _, chunk_no in row]
            lengths = [self.cut.chunk_length(chunk_no) for chunk_no in numbers]
            size = sum(lengths)
            self._read_into(buffer[:size], self.cut.chunk_offset(numbers[0]))
            for chunk_no, length in zip(numbers, lengths, strict=True):
                chunks.append((chunk_no, buffer[:length]))
                buffer = buffer[length:]
        return chunks

    def _read_into(self, view: memoryview, start: int) -> None:
        for at in range(0, len(view), nbd_client.MAX_READ_BYTES):
            part = view[at : at + nbd_client.MAX_READ_BYTES]
            self._rate_limit.spend_bytes(len(part))
            self._disk.read_into(part, start + at)
            self.read_bytes += len(part)

    def _store(self, chunks: dict[ids.Cid, memoryview], plain_bytes: int) -> None:
        chunks.pop(ids.ZERO_CID, None)
        if chunks:
            sealed = _once(lambda name: self._seal.close(name, chunks[name]))
            self.sent_bytes += self._group.put(sorted(chunks), sealed, plain_bytes)


def _once(seal: Callable[[ids.Cid], bytes]) -> Callable[[ids.Cid], bytes]:
    """Cache ``seal``, so that the threads of all holders seal each chunk once."""
    known, lock = functools.cache(seal), threading.Lock()

    def sealed(name: ids.Cid) -> bytes:
        with lock:  # functools.cache may call twice
            return known(name)

    return sealed
