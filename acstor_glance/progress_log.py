# SPDX-License-Identifier: Apache-2.0
"""What a pre-hash run has finished, kept so that the next run can go on.

The one rule: an entry is believed only if the chain of hashes from the header to
it is whole, so what a crash left torn or unwritten is cut off and done again.
The header names the image by size, mtime and inode: the log of an image that
changed since is started over.

Layout: the header (magic, size, mtime_ns, inode, chunk bytes, record bytes, how
chunks are named, and the BLAKE3-256 of those), then for each record its CIDs and
BLAKE3-256 (previous hash + CIDs).  A log lives only between two runs on one host and
has no version: a change of layout changes the magic.
"""

import fcntl
import logging
import os
import pathlib
import struct
from collections.abc import Iterator

import blake3

from acstor_common import errors
from acstor_common import geometry
from acstor_common import ids

LOG = logging.getLogger(__name__)

MAGIC = b"\x89acpart2"
_HEADER = struct.Struct("<8sQqQIQ32s")
_DIGEST_BYTES = 32


def header_bytes(
    cut: geometry.Geometry, mtime_ns: int, inode: int, record_bytes: int, naming: bytes
) -> bytes:
    """Return what a log of this image, read in this way, begins with.

    :param naming: fingerprint of how its chunks are named
    """
    fields = _HEADER.pack(
        MAGIC, cut.size_bytes, mtime_ns, inode, cut.chunk_bytes, record_bytes, naming
    )
    return fields + blake3.blake3(fields).digest()


class ProgressLog:
    """The finished records of an image, in order; one process at a time has it open."""

    def __init__(
        self, path: pathlib.Path, cut: geometry.Geometry, record_bytes: int, header: bytes
    ) -> None:
        """Open or make the log and count what is sound in it.

        :raises errors.Unusable: another process has it open, or the file is something else
        :raises OSError: it cannot be made, read or written
        """
        self.path, self._cut, self._header = path, cut, header
        self._record_chunks = record_bytes // cut.chunk_bytes
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

    def append(self, cids: bytes) -> None:
        """Keep the CIDs of the next record; a kill after this loses nothing of it."""
        self._chain = blake3.blake3(self._chain + cids).digest()
        self._file.write(cids + self._chain)
        self._file.flush()
        self.chunk_count += len(cids) // ids.CID_BYTES

    def records(self) -> Iterator[bytes]:
        """Yield the CIDs of each finished record, from the first one on."""
        return (cids for cids, _chain in self._entries())

    def remove(self) -> None:
        """Delete the log: it is of no more use."""
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
        """Take over what is sound; begin anew if the log is of something else."""
        found = self._file.read(len(self._header))
        if found[: len(MAGIC)] != MAGIC[: len(found)]:
            raise errors.Unusable(
                str(self.path), "is in the way and no log of a stopped run", "Move it elsewhere"
            )
        if found == self._header:
            for cids, chain in self._entries():
                self._chain = chain
                self.chunk_count += len(cids) // ids.CID_BYTES
        elif found:
            LOG.warning(
                "%s: the image changed since the last run, or its cut or names did; starting over",
                self.path,
            )
        self._cut_off()

    def _cut_off(self) -> None:
        """Leave in the file only the header and the sound entries, ready for the next one."""
        records = -(-self.chunk_count // self._record_chunks)
        sound_bytes = self.chunk_count * ids.CID_BYTES + records * _DIGEST_BYTES
        self._file.seek(0)
        self._file.write(self._header)
        self._file.truncate(len(self._header) + sound_bytes)
        self._file.seek(0, os.SEEK_END)

    def _entries(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield each sound entry: CIDs, and the hash that chains the next one to it."""
        self._file.seek(len(self._header))
        chain = self._header[-_DIGEST_BYTES:]
        for first in range(0, self._cut.chunk_count, self._record_chunks):
            chunks = min(self._record_chunks, self._cut.chunk_count - first)
            cids = self._file.read(chunks * ids.CID_BYTES)
            chain = blake3.blake3(chain + cids).digest()
            if self._file.read(_DIGEST_BYTES) != chain:
                return
            yield cids, chain
