# SPDX-License-Identifier: Apache-2.0
"""Writes chunk maps as streams, in bounded memory.

Header and directory need the lengths of blocks and index, which go to temporary files first.  An
external merge sort builds the index in some 30 MiB of memory, and 150 bytes per distinct block.
"""

import array
import collections
import contextlib
import heapq
import itertools
import operator
import pathlib
import struct
import tempfile
from collections.abc import Iterable
from collections.abc import Iterator
from typing import IO
from typing import Self

import blake3

from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.formats import chunk_map_header
from acstor_common.formats import layout
from acstor_common.model import geometry
from acstor_common.model import ids

_COPY_BYTES = 1 * geometry.MIB
_IN_MEMORY_BYTES = 4 * geometry.MIB
RUN_CONTENTS = 1 << 17  # contents sorted in memory: those of 8 GiB
_NUMBER = struct.Struct("<I")
_CHUNK_NO = struct.Struct(">I")  # big-endian, so that records sort by CID and chunk
_RECORD_BYTES = ids.CID_BYTES + _CHUNK_NO.size
_RECORD_WORDS = _RECORD_BYTES // chunk_map.NUMBER_BYTES
_CIDS = struct.Struct(f"{ids.CID_BYTES}s" * chunk_map.PAGE_CHUNKS)
_cid_of = operator.itemgetter(slice(ids.CID_BYTES))
_READ_RECORDS = 1024


def write_map(
    subject: chunk_map.Subject,
    cids: Iterable[bytes],
    entries: Iterable[bytes] = (),
    folder: pathlib.Path | None = None,
    run_contents: int = RUN_CONTENTS,
) -> Iterator[bytes]:
    """Yield the bytes of a map.

    >>> cut = geometry.Geometry(size_bytes=65536, chunk_bytes=65536)
    >>> image_id = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
    >>> raw = layout.raw_file(cut.size_bytes)
    >>> subject = chunk_map.Subject(image_id, cut, chunk_map.UNKNOWN_OS_HASH, (), raw)
    >>> made = b"".join(write_map(subject, [ids.ZERO_CID]))
    >>> chunk_map.ChunkMap.parse(made, "example").is_zero(0)
    True

    :param cids: of all chunks in order, in pieces of any length
    :param entries: packed, of :func:`layout.merge_within_pages`, in pieces of any length; read last
    :raises ValueError: a field does not fit into a header
    :raises errors.LocalProtocolError: wrong number of CIDs or entries
    """
    cut, stored = subject.geometry, subject.stored
    chunk_map_header.header_bytes(subject, chunk_map.Tables(0, 0))  # fails before anything is read
    with _Tables(folder, run_contents) as tables:
        for piece in cids:
            tables.feed(piece)
        tables.end()
        _check_missing("bytes of CIDs", cut.chunk_count * ids.CID_BYTES - tables.fed_bytes)
        header = chunk_map_header.header_bytes(subject, tables.lengths)
        hasher = blake3.blake3()
        for part in itertools.chain([header], tables.parts(), _layout_parts(cut, stored, entries)):
            hasher.update(part)
            yield part
        yield hasher.digest()


def _layout_parts(
    cut: geometry.Geometry, stored: layout.StoredFile, entries: Iterable[bytes]
) -> Iterator[bytes]:
    index, missing = layout.IndexBuilder(cut), stored.entries
    for piece in entries:
        missing -= len(piece) // layout.ENTRY_BYTES
        index.add_entries(piece)
        yield piece
    _check_missing("entries", missing)
    if not stored.is_identity:
        yield index.index_slots()


def _check_missing(what: str, missing: int) -> None:
    if missing:
        raise errors.LocalProtocolError(f"a chunk map was ended with {missing} {what} missing")


class _Tables:
    def __init__(self, folder: pathlib.Path | None, run_contents: int) -> None:
        self.fed_bytes = 0
        self._files = contextlib.ExitStack()
        self._blocks = self._temporary(folder)
        self._heads, self._firsts = self._temporary(folder), self._temporary(folder)
        self._contents = _Contents(self._temporary(folder), run_contents)
        self._content_count = 0
        self._pending = bytearray()
        self._numbers: dict[bytes, int] = {}  # block numbers by hash
        self._directory = bytearray()

    def _temporary(self, folder: pathlib.Path | None) -> IO[bytes]:
        return self._files.enter_context(
            tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES, dir=str(folder) if folder else None)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    @property
    def lengths(self) -> chunk_map.Tables:
        return chunk_map.Tables(len(self._numbers), self._content_count)

    def feed(self, cids: bytes) -> None:
        self.fed_bytes += len(cids)
        self._pending += cids
        stop = len(self._pending) // chunk_map.BLOCK_BYTES * chunk_map.BLOCK_BYTES
        for at in range(0, stop, chunk_map.BLOCK_BYTES):
            self._take(bytes(self._pending[at : at + chunk_map.BLOCK_BYTES]))
        del self._pending[:stop]

    def end(self) -> None:
        if self._pending:
            self._take(bytes(self._pending.ljust(chunk_map.BLOCK_BYTES, b"\0")))
        for records in self._contents.sorted():
            words = array.array("I", b"".join(records))
            words.byteswap()
            self._heads.write(words[::_RECORD_WORDS])
            self._firsts.write(words[_RECORD_WORDS - 1 :: _RECORD_WORDS])
            self._content_count += len(records)

    def parts(self) -> Iterator[bytes]:
        yield bytes(self._directory)
        for file in (self._blocks, self._heads, self._firsts):
            file.seek(0)
            while piece := file.read(_COPY_BYTES):
                yield piece

    def _take(self, block: bytes) -> None:
        name = blake3.blake3(block).digest()
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._numbers)
            self._blocks.write(block)
            first = len(self._directory) // chunk_map.NUMBER_BYTES * chunk_map.PAGE_CHUNKS
            self._contents.add(block, first)
        self._directory += _NUMBER.pack(number)


class _Contents:
    """Sorts contents by CID with their first chunk: external merge sort (Knuth, TAOCP 3, 5.4)."""

    def __init__(self, file: IO[bytes], run_contents: int) -> None:
        self._file, self._run_contents = file, run_contents
        self._run: dict[bytes, int] = {ids.ZERO_CID: 0}  # excluded from the index
        self._stops: list[int] = []

    def add(self, block: bytes, first_chunk: int) -> None:
        noted = map(self._run.setdefault, _CIDS.unpack(block), itertools.count(first_chunk))
        collections.deque(noted, maxlen=0)
        if len(self._run) > self._run_contents:
            self._file.writelines(self._sorted_run())
            self._stops.append(self._file.tell())
            self._run = {ids.ZERO_CID: 0}

    def sorted(self) -> Iterator[list[bytes]]:
        """Yield records (CID and first chunk) of all contents, ordered by CID."""
        if not self._stops:
            yield self._sorted_run()
            return
        runs = [self._read(*ends) for ends in itertools.pairwise([0, *self._stops])]
        same_cid = itertools.groupby(heapq.merge(self._sorted_run(), *runs), key=_cid_of)
        firsts = (next(records) for _, records in same_cid)
        while some := list(itertools.islice(firsts, _READ_RECORDS)):
            yield some

    def _sorted_run(self) -> list[bytes]:
        del self._run[ids.ZERO_CID]
        return sorted(map(operator.add, self._run, map(_CHUNK_NO.pack, self._run.values())))

    def _read(self, start: int, stop: int) -> Iterator[bytes]:
        for at in range(start, stop, _READ_RECORDS * _RECORD_BYTES):
            self._file.seek(at)  # other runs move the position
            piece = self._file.read(min(_READ_RECORDS * _RECORD_BYTES, stop - at))
            for record in range(0, len(piece), _RECORD_BYTES):
                yield piece[record : record + _RECORD_BYTES]


def with_os_hash(
    found: chunk_map.ChunkMap, buffer: memoryview, os_hash: chunk_map.OsHash
) -> Iterator[bytes]:
    """Yield the map ``found``, whose bytes are ``buffer``, with another image hash."""
    header = chunk_map_header.header_bytes(found.subject._replace(os_hash=os_hash), found.tables)
    hasher = blake3.blake3(header)
    yield header
    stop = len(buffer) - chunk_map.TRAILER_BYTES
    for start in range(chunk_map.HEADER_BYTES, stop, _COPY_BYTES):
        piece = bytes(buffer[start : min(start + _COPY_BYTES, stop)])
        hasher.update(piece)
        yield piece
    yield hasher.digest()
