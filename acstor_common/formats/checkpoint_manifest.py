# SPDX-License-Identifier: Apache-2.0
"""Checkpoint manifests: the chunks of a disk that differ from its base image.

Other chunks are the base image's, or zeros past its end (``doc/source/format/checkpoint.rst``).
Fields are checked although a manifest is sealed: the host that wrote it may be compromised.  A
manifest of MAX_ENTRIES has 80 MiB, so it is read in place.
"""

import bisect
import enum
import itertools
import struct
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Final
from typing import NamedTuple

from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.formats import chunk_map_header
from acstor_common.formats import file_header
from acstor_common.model import geometry
from acstor_common.model import ids

MAGIC: Final = b"\x89ackpt\r\n"
VERSION: Final = 1
MAX_ENTRIES: Final = 1 << 21  # 128 GiB of differences in chunks of 64 KiB
NAMES_AT_ONCE: Final = 1 << 18  # 40 MiB in memory
MAX_CHUNKS: Final = 1 << 30  # of a disk: 64 TiB in chunks of 64 KiB
MAX_PROJECT_BYTES: Final = 64
MAX_NUMBER: Final = (1 << 63) - 1
"""Limit of integers in databases and other languages' JSON; also of times."""

_FIELDS: Final = "BxIQQQQ16s16s16s16s64sHH64s12x"  # of _Header
_HEADER: Final = file_header.FileHeader(
    "a manifest", MAGIC, VERSION, _FIELDS, errors.CheckpointFormatError, has_checksum=False
)
HEADER_BYTES: Final = _HEADER.size_bytes
_ENTRY: Final = struct.Struct(f"<Q{ids.CID_BYTES}s")
ENTRY_BYTES: Final = _ENTRY.size
MAX_BYTES: Final = HEADER_BYTES + MAX_ENTRIES * ENTRY_BYTES  # of a manifest before sealing
_AT_CONSISTENCY, _AT_CHUNK_BYTES, _AT_ENTRIES = 10, 12, 40


class Consistency(enum.IntEnum):
    """Consistency of a checkpoint."""

    CRASH = 1  # as after a power failure
    FILESYSTEM = 2  # the guest agent froze the file systems


class Subject(NamedTuple):
    """Subject of a checkpoint, and the time when it was taken."""

    disk: ids.ImageId  # a UUID for the disk's key; new for each full checkpoint
    instance: ids.ImageId
    project: str
    base: ids.ImageId
    os_hash: chunk_map.OsHash  # Glance's hash of the base
    cut: geometry.Geometry  # size of the disk, and the chunk size of the base's map
    taken_ms: int  # since 1970, wall clock of the host
    consistency: Consistency
    number: int  # of the checkpoint of the disk, from 1


class Entry(NamedTuple):
    """A chunk that differs from the base: its number and name."""

    chunk_no: int
    cid: ids.Cid  # ``Seal.chunk_name``; ZERO_CID: zeros


class _Header(NamedTuple):
    consistency: int
    chunk_bytes: int
    size_bytes: int
    taken_ms: int
    number: int
    entries: int
    disk: bytes
    instance: bytes
    base: bytes
    os_hash_algo: bytes
    os_hash_value: bytes
    os_hash_value_bytes: int
    project_bytes: int
    project: bytes


def build(subject: Subject, entries: Iterable[Entry], max_entries: int = MAX_ENTRIES) -> bytearray:
    """Return an unsealed manifest of ascending entries; ValueError: bad field, order or number."""
    made = bytearray(HEADER_BYTES)
    for chunk_no, cid in entries:
        made += _ENTRY.pack(chunk_no, cid)
        if len(made) > HEADER_BYTES + max_entries * ENTRY_BYTES:
            raise ValueError(f"more than {max_entries} chunks differ from the base image")
    with memoryview(made) as view, view[HEADER_BYTES:] as table:
        if why := _fault_of_subject(subject) or _fault_of_entries(table, subject.cut):
            raise ValueError(why)
        view[:HEADER_BYTES] = _header_bytes(subject, len(table) // ENTRY_BYTES)
    return made


def _header_bytes(subject: Subject, entries: int) -> bytes:
    project = subject.project.encode()
    return _HEADER.pack(
        subject.consistency,
        subject.cut.chunk_bytes,
        subject.cut.size_bytes,
        subject.taken_ms,
        subject.number,
        entries,
        ids.image_id_bytes(subject.disk),
        ids.image_id_bytes(subject.instance),
        ids.image_id_bytes(subject.base),
        subject.os_hash.algo.encode("ascii"),
        subject.os_hash.value,
        len(subject.os_hash.value),
        len(project),
        project,
    )


class Manifest:
    """A validated manifest, read in place."""

    def __init__(self, buffer: bytes | bytearray, subject: Subject) -> None:
        self._buffer, self.subject = buffer, subject

    @classmethod
    def parse(
        cls, buffer: bytes | bytearray, what: str, max_entries: int = MAX_ENTRIES
    ) -> "Manifest":
        """Validate a manifest, or raise CheckpointFormatError; 0.05 s per million entries."""
        header = _Header(*_HEADER.unpack(buffer, what))
        subject = _subject(header, what)
        table = memoryview(buffer)[HEADER_BYTES:]
        if header.entries > max_entries or len(table) != header.entries * ENTRY_BYTES:
            why = f"{header.entries} entries do not fit {len(table)} bytes"
            raise errors.CheckpointFormatError(what, _AT_ENTRIES, why)
        if why := _fault_of_entries(table, subject.cut):
            raise errors.CheckpointFormatError(what, HEADER_BYTES, why)
        return cls(buffer, subject)

    def __len__(self) -> int:
        return (len(self._buffer) - HEADER_BYTES) // ENTRY_BYTES

    def __bool__(self) -> bool:
        """Return True, also for a manifest without entries."""
        return True

    def __iter__(self) -> Iterator[Entry]:
        with memoryview(self._buffer) as view:
            yield from map(Entry._make, _ENTRY.iter_unpack(view[HEADER_BYTES:]))

    def find(self, chunk_no: int) -> ids.Cid | None:
        """Return a chunk's name; None if it equals the base's.  Takes some 10 us."""
        at = bisect.bisect_left(range(len(self)), chunk_no, key=lambda n: self._entry(n)[0])
        if at == len(self):
            return None
        found = self._entry(at)
        return found.cid if found.chunk_no == chunk_no else None

    def _entry(self, number: int) -> Entry:
        return Entry(*_ENTRY.unpack_from(self._buffer, HEADER_BYTES + number * ENTRY_BYTES))

    def iter_names(self, names_at_once: int = NAMES_AT_ONCE) -> Iterator[ids.Cid]:
        """Yield the distinct names that holders must store, ascending, in :func:`name_ranges`."""
        for within in name_ranges(len(self), names_at_once):
            with memoryview(self._buffer) as view:
                entries = _ENTRY.iter_unpack(view[HEADER_BYTES:])
                names = sorted(cid for _, cid in entries if cid[0] in within)  # a set is larger
            yield from (cid for cid, _ in itertools.groupby(names) if cid != ids.ZERO_CID)

    def names_within(self, within: range) -> set[ids.Cid]:
        """Return names whose first byte is in a range; 0.3 us per entry."""
        first, stop = within.start, within.stop
        with memoryview(self._buffer) as view:
            entries = _ENTRY.iter_unpack(view[HEADER_BYTES:])
            names = {cid for _, cid in entries if first <= cid[0] < stop}
        names.discard(ids.ZERO_CID)
        return names


def name_ranges(count: int, names_at_once: int = NAMES_AT_ONCE) -> Iterator[range]:
    """Yield ranges of first bytes, each with about ``names_at_once`` of the names."""
    passes = min(256, 1 << (max(0, count - 1) // names_at_once).bit_length())
    for first in range(0, 256, 256 // passes):
        yield range(first, first + 256 // passes)


def _subject(header: _Header, what: str) -> Subject:
    try:
        consistency = Consistency(header.consistency)
        cut = geometry.Geometry(header.size_bytes, header.chunk_bytes)
        subject = Subject(
            ids.image_id_from_bytes(header.disk),
            ids.image_id_from_bytes(header.instance),
            header.project[: header.project_bytes].decode(),
            ids.image_id_from_bytes(header.base),
            chunk_map.OsHash.unpack(
                header.os_hash_algo, header.os_hash_value, header.os_hash_value_bytes
            ),
            cut,
            header.taken_ms,
            consistency,
            header.number,
        )
    except ValueError as e:
        raise errors.CheckpointFormatError(what, _AT_CONSISTENCY, str(e)) from e
    if why := _fault_of_subject(subject):
        raise errors.CheckpointFormatError(what, _AT_CHUNK_BYTES, why)
    return subject


def _fault_of_subject(subject: Subject) -> str:
    cut = subject.cut
    if not 0 < cut.chunk_count <= MAX_CHUNKS:
        return f"a disk of {cut.size_bytes} bytes cannot have checkpoints"
    if not 0 <= subject.taken_ms <= MAX_NUMBER or not 0 < subject.number <= MAX_NUMBER:
        return f"number {subject.number} or moment {subject.taken_ms} is out of range"
    project = subject.project
    if len(project.encode()) > MAX_PROJECT_BYTES or not project.isprintable():
        return f"{project[:80]!r} is not a project"
    return chunk_map_header.fault_of_os_hash(subject.os_hash)


def _fault_of_entries(table: memoryview, cut: geometry.Geometry) -> str:
    before = -1
    for chunk_no, cid in _ENTRY.iter_unpack(table):
        if chunk_no <= before:
            return f"chunk {chunk_no} is listed after chunk {before}"
        if not cid[-1] & 1 and cid != ids.ZERO_CID:
            return f"chunk {chunk_no} has a name that is not keyed"
        before = chunk_no
    return f"the disk has no chunk {before}" if before >= cut.chunk_count else ""
