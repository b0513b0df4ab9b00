# SPDX-License-Identifier: Apache-2.0
"""Log of a pre-hash run's finished records, from which the next run resumes.

Layout: the header (magic, size, mtime_ns, inode, chunk bytes, record bytes, disk format, naming,
and BLAKE3-256 of those); for each record the length of its entries, its CIDs, its entries of the
layout, and BLAKE3-256 (previous hash + all those). The highest bit of the length means that all
CIDs are zeros' and left out. The rest after the last valid record is cut off.
"""

import fcntl
import logging
import os
import pathlib
import struct
from collections.abc import Iterator
from typing import NamedTuple

import blake3

from acstor_common import errors
from acstor_common.formats import layout
from acstor_common.model import geometry
from acstor_common.model import ids

LOG = logging.getLogger(__name__)

MAGIC = b"\x89acpart4"
_HEADER = struct.Struct("<8sQqQIQI32s")
_LENGTH = struct.Struct("<I")
_IS_ZERO = 1 << 31
_DIGEST_BYTES = 32
_SMALLEST_EXTENT_BYTES = 512


class HashedRecord(NamedTuple):
    """CIDs of one record of an image, and its packed layout entries (none if raw)."""

    cids: bytes
    entries: bytes = b""


def header_bytes(
    cut: geometry.Geometry,
    mtime_ns: int,
    inode: int,
    record_bytes: int,
    disk_format: layout.DiskFormat,
    naming: bytes,
) -> bytes:
    """Return the header of a log; ``naming`` is a fingerprint."""
    fields = _HEADER.pack(
        *(MAGIC, cut.size_bytes, mtime_ns, inode, cut.chunk_bytes, record_bytes),
        *(disk_format, naming),
    )
    return fields + blake3.blake3(fields).digest()


class ProgressLog:
    """The finished records of an image, in order; locked for one process, or Unusable."""

    def __init__(
        self, path: pathlib.Path, cut: geometry.Geometry, record_bytes: int, header: bytes
    ) -> None:
        self.path, self._cut, self._header = path, cut, header
        self._record_chunks = record_bytes // cut.chunk_bytes
        self._most_entry_bytes = record_bytes // _SMALLEST_EXTENT_BYTES * layout.ENTRY_BYTES
        self._chain = header[-_DIGEST_BYTES:]
        self.chunk_count = 0
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        self._file = os.fdopen(descriptor, "r+b")
        try:
            self._lock()
            self._load()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> "ProgressLog":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()

    def append_record(self, record: HashedRecord) -> None:
        """Append a record; it survives a kill from then on."""
        cids, length = record.cids, len(record.entries)
        if cids == bytes(len(cids)):  # a hundred times faster than any()
            cids, length = b"", length | _IS_ZERO
        body = _LENGTH.pack(length) + cids + record.entries
        self._chain = blake3.blake3(self._chain + body).digest()
        self._file.write(body + self._chain)
        self._file.flush()
        self.chunk_count += len(record.cids) // ids.CID_BYTES

    def iter_records(self) -> Iterator[HashedRecord]:
        """Yield each finished record."""
        return (record for record, _chain, _stop in self._sound())

    def remove(self) -> None:
        """Delete the log."""
        self.path.unlink()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise errors.Unusable(
                str(self.path), "another process is making this map right now"
            ) from None
        if os.fstat(self._file.fileno()).st_nlink == 0:
            raise errors.Unusable(str(self.path), "another process has just finished this map")

    def _load(self) -> None:
        found = self._file.read(len(self._header))
        if found[: len(MAGIC)] != MAGIC[: len(found)]:
            raise errors.Unusable(
                str(self.path), "exists and is not the log of a stopped run", "Move it elsewhere"
            )
        sound_stop = len(self._header)
        if found == self._header:
            for record, chain, stop in self._sound():
                self._chain, sound_stop = chain, stop
                self.chunk_count += len(record.cids) // ids.CID_BYTES
        elif found:
            LOG.warning(
                "%s: the image, its chunking or its names changed; starting over",
                self.path,
            )
        self._cut_off(sound_stop)

    def _cut_off(self, sound_stop: int) -> None:
        self._file.seek(0)
        self._file.write(self._header)
        self._file.truncate(sound_stop)
        self._file.seek(0, os.SEEK_END)

    def _sound(self) -> Iterator[tuple[HashedRecord, bytes, int]]:
        stop = self._file.seek(len(self._header))
        chain = self._header[-_DIGEST_BYTES:]
        for first in range(0, self._cut.chunk_count, self._record_chunks):
            chunks = min(self._record_chunks, self._cut.chunk_count - first)
            raw_length = self._file.read(_LENGTH.size)
            if len(raw_length) < _LENGTH.size:
                return
            (length,) = _LENGTH.unpack(raw_length)
            zeros = bytes(chunks * ids.CID_BYTES if length & _IS_ZERO else 0)
            entry_bytes = length & ~_IS_ZERO
            if entry_bytes > self._most_entry_bytes:
                return
            cids_bytes = chunks * ids.CID_BYTES - len(zeros)
            body = self._file.read(cids_bytes + entry_bytes)
            chain = blake3.blake3(chain + raw_length + body).digest()
            if self._file.read(_DIGEST_BYTES) != chain:
                return
            stop += len(raw_length) + len(body) + _DIGEST_BYTES
            yield HashedRecord(zeros or body[:cids_bytes], body[cids_bytes:]), chain, stop
