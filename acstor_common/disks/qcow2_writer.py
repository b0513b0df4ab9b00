# SPDX-License-Identifier: Apache-2.0
"""Streaming writer of qcow2 files (version 3, exact refcounts) whose length is known in advance.

A file consists of header, refcount table and blocks, L1 table, L2 tables and data in disk order.
Compressed clusters are copied as stored, without gaps.  Only the L1 table is kept in memory: 1 MiB
for 64 TiB with clusters of 64 KiB, at most 32 MiB.
"""

import array
import itertools
import struct
import sys
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import NamedTuple

from acstor_common.disks import qcow2_header
from acstor_common.formats import layout

_COPIED, _COMPRESSED, _ZERO = 1 << 63, 1 << 62, 1
_SECTOR = qcow2_header.SECTOR_BYTES
_ENTRY_BYTES = 8
_REFCOUNT_BYTES, _REFCOUNT_ORDER = 2, 4  # log2 of bits
_MIN_PACKED_BYTES = 64  # least space of a compressed cluster, so that refcounts do not overflow
_PIECE_BYTES = 1 << 20
_HEADER = struct.Struct(">4sIQIIQIIQQIIQQQQIIB7x")
_EXTENSION = struct.Struct(">II")  # type, length
_BACKING_FORMAT, _RAW = 0xE2792ACA, b"raw"
_TOLD_BYTES = 24  # of the extension and the end marker
MAX_BACKING_BYTES = 1023

Buffer = bytes | bytearray | memoryview


class DiskRun(NamedTuple):
    """A run of clusters of the disk: data, zeros, or one compressed cluster."""

    at: int
    length: int  # whole clusters; the last one may exceed the disk
    packed_bytes: int = 0  # stored length of a compressed cluster; 0: not compressed
    is_zero: bool = False  # zeros without stored bytes, which hide the backing file


class _Placed(NamedTuple):
    """A run and its range, relative to the beginning of the data."""

    run: DiskRun
    offset: int
    stop: int


class Plan:
    """Offsets of all parts of a file; reusable for several files.

    :param virtual_size: whole sectors
    :param cluster_bytes: a power of two from 512 to 2 MiB
    :param codec: of compressed runs; STORED if there are none
    :param runs: returns the same ordered runs at each of four calls
    :param backing: path of a raw backing file; empty: none
    :raises ValueError: a bad parameter or run, or an L1 table above QEMU's limit of 32 MiB
    """

    def __init__(
        self,
        virtual_size: int,
        cluster_bytes: int,
        codec: layout.Codec,
        runs: Callable[[], Iterable[DiskRun]],
        backing: str = "",
    ) -> None:
        self._virtual_size, self._codec, self._runs = virtual_size, codec, runs
        self._cluster_bytes, self._cluster_bits = cluster_bytes, cluster_bytes.bit_length() - 1
        self._backing = backing.encode("utf-8", "surrogateescape")
        self._check()
        self._l2_guest_bytes = cluster_bytes // _ENTRY_BYTES * cluster_bytes
        self._l1 = array.array("Q", bytes(-(-virtual_size // self._l2_guest_bytes) * _ENTRY_BYTES))
        self._l1_clusters = self._clusters(len(self._l1) * _ENTRY_BYTES)
        self._l2_tables, self._data_clusters = self._count()
        self._table_clusters, self._block_clusters = self._refcount_clusters()
        self._l2_at = self._l1_at + self._l1_clusters * cluster_bytes
        self.data_at = self._l2_at + self._l2_tables * cluster_bytes
        """Offset of the data of the runs: whole clusters."""
        self.file_bytes = self.data_at + self._data_clusters * cluster_bytes
        """Length of the file: whole clusters."""

    def iter_parts(self, read: Callable[[DiskRun], Iterable[Buffer]]) -> Iterator[Buffer]:
        """Yield the file in parts of at most 2 MiB or as ``read`` returns them.

        ``read`` must return exactly a run's length, or its ``packed_bytes`` (ValueError).
        """
        yield from self.iter_tables()
        done = 0
        for run, offset, _ in self._placed():
            if run.is_zero:
                continue
            yield from zeros(offset - done)
            length = run.packed_bytes or run.length
            for data in read(run):
                length -= len(data)
                yield data
            if length:
                raise ValueError(f"{abs(length)} bytes too few or too many at {run.at} of the disk")
            done = offset + (run.packed_bytes or run.length)
        yield from zeros(self._data_clusters * self._cluster_bytes - done)

    def _check(self) -> None:
        size, cluster_bytes = self._virtual_size, self._cluster_bytes
        if size < 0 or size % _SECTOR:
            raise ValueError(f"a disk of {size} bytes, not of whole sectors")
        lowest, highest = qcow2_header.MIN_CLUSTER_BITS, qcow2_header.MAX_CLUSTER_BITS
        if cluster_bytes not in {1 << bits for bits in range(lowest, highest + 1)}:
            raise ValueError(f"clusters of {cluster_bytes} bytes")
        l2_guest_bytes = cluster_bytes // _ENTRY_BYTES * cluster_bytes
        if size > qcow2_header.MAX_L1_BYTES // _ENTRY_BYTES * l2_guest_bytes:
            raise ValueError(f"a disk of {size} bytes in clusters of {cluster_bytes}")
        if len(self._backing) > min(MAX_BACKING_BYTES, cluster_bytes - _HEADER.size - _TOLD_BYTES):
            raise ValueError(f"the name of a backing file has {len(self._backing)} bytes")

    def _count(self) -> tuple[int, int]:
        """Return numbers of L2 tables and data clusters; number the tables in the L1."""
        tables = end = 0
        for run, _, stop in self._placed():
            end = stop
            last = (run.at + run.length - 1) // self._l2_guest_bytes
            for index in range(run.at // self._l2_guest_bytes, last + 1):
                if not self._l1[index]:
                    self._l1[index] = tables = tables + 1
        return tables, self._clusters(end)

    def _refcount_clusters(self) -> tuple[int, int]:
        others = 1 + self._l1_clusters + self._l2_tables + self._data_clusters
        table = blocks = 1
        while True:
            needed = self._clusters((others + table + blocks) * _REFCOUNT_BYTES)
            if needed == blocks and self._clusters(blocks * _ENTRY_BYTES) <= table:
                return table, blocks
            blocks, table = needed, max(table, self._clusters(needed * _ENTRY_BYTES))

    @property
    def _l1_at(self) -> int:
        return (1 + self._table_clusters + self._block_clusters) * self._cluster_bytes

    def _clusters(self, length: int) -> int:
        return -(-length // self._cluster_bytes)

    def _placed(self) -> Iterator[_Placed]:
        before = end = 0
        for run in self._runs():
            self._check_run(run, before)
            before = run.at + run.length
            if run.is_zero:
                offset = end
            elif run.packed_bytes:
                offset, end = end, end + max(run.packed_bytes, _MIN_PACKED_BYTES)
            else:
                offset = self._clusters(end) * self._cluster_bytes
                end = offset + run.length
            # Readers read whole sectors of compressed clusters.
            yield _Placed(run, offset, -(-end // _SECTOR) * _SECTOR)

    def _check_run(self, run: DiskRun, before: int) -> None:
        cluster_bytes, packed_bytes = self._cluster_bytes, run.packed_bytes
        is_cut_well = run.at % cluster_bytes == run.length % cluster_bytes == 0
        if run.at < before or not is_cut_well or not 0 < run.length:
            raise ValueError(f"{run} is not a run of clusters behind {before}")
        if run.at + run.length >= self._virtual_size + cluster_bytes:
            raise ValueError(f"{run} is not on the disk")
        if packed_bytes and (
            run.length != cluster_bytes
            or not 0 < packed_bytes <= cluster_bytes
            or self._codec is layout.Codec.STORED
            or run.is_zero
        ):
            raise ValueError(f"{run} is not a compressed cluster")

    def iter_tables(self) -> Iterator[bytes]:
        """Yield what precedes ``data_at``, in parts of at most 2 MiB."""
        yield self._extended().ljust(self._cluster_bytes, b"\0")
        first_block = (1 + self._table_clusters) * self._cluster_bytes
        blocks = range(first_block, self._l1_at, self._cluster_bytes)
        yield from _pieces(iter(blocks), "Q", self._table_clusters * self._cluster_bytes)
        yield from _pieces(self._refcounts(), "H", self._block_clusters * self._cluster_bytes)
        l1_words = (
            self._l2_at + (number - 1) * self._cluster_bytes | _COPIED if number else 0
            for number in self._l1
        )
        yield from _pieces(l1_words, "Q", self._l1_clusters * self._cluster_bytes)
        yield from _pieces(self._l2_words(), "Q", self._l2_tables * self._cluster_bytes)

    def _extended(self) -> bytes:
        extensions = b""
        if self._backing:
            extensions = _EXTENSION.pack(_BACKING_FORMAT, len(_RAW)) + _RAW.ljust(8, b"\0")
        extensions += _EXTENSION.pack(0, 0)
        return self._header(_HEADER.size + len(extensions)) + extensions + self._backing

    def _header(self, backing_at: int) -> bytes:
        has_zstd = self._codec is layout.Codec.ZSTD
        incompatible = qcow2_header.Feature.COMPRESSION if has_zstd else 0
        table = self._cluster_bytes, self._table_clusters
        named = (backing_at, len(self._backing)) if self._backing else (0, 0)
        return _HEADER.pack(
            *(qcow2_header.MAGIC, 3, *named, self._cluster_bits),
            *(self._virtual_size, 0, len(self._l1), self._l1_at, *table, 0, 0),
            *(incompatible, 0, 0, _REFCOUNT_ORDER, _HEADER.size, has_zstd),
        )

    def _refcounts(self) -> Iterator[int]:
        yield from itertools.repeat(1, self.data_at // self._cluster_bytes)
        shared = count = 0  # cluster with compressed ones, and their number so far
        for run, offset, stop in self._placed():
            if run.is_zero:
                continue
            first, last = offset // self._cluster_bytes, (stop - 1) // self._cluster_bytes
            if count and first != shared:
                yield count
                count = 0
            if not run.packed_bytes:
                yield from itertools.repeat(1, last + 1 - first)
                continue
            for _ in range(first, last):
                yield count + 1
                count = 0
            shared, count = last, count + 1
        if count:
            yield count

    def _l2_words(self) -> Iterator[int]:
        at = 0  # disk offset of the next entry
        for run, offset, stop in self._placed():
            table_at = run.at - run.at % self._l2_guest_bytes
            if table_at > at:
                yield from itertools.repeat(0, -at % self._l2_guest_bytes // self._cluster_bytes)
                at = table_at
            yield from itertools.repeat(0, (run.at - at) // self._cluster_bytes)
            at = run.at + run.length
            place = self.data_at + offset
            if run.is_zero:
                yield from itertools.repeat(_ZERO, run.length // self._cluster_bytes)
            elif run.packed_bytes:
                more_sectors = (self.data_at + stop - 1) // _SECTOR - place // _SECTOR
                yield _COMPRESSED | more_sectors << 62 - (self._cluster_bits - 8) | place
            else:
                yield from range(_COPIED + place, _COPIED + place + run.length, self._cluster_bytes)


def _pieces(words: Iterator[int], code: str, length: int) -> Iterator[bytes]:
    """Yield words in big-endian, padded with zeros to ``length``."""
    while piece := array.array(code, itertools.islice(words, _PIECE_BYTES // 8)):
        if sys.byteorder == "little":
            piece.byteswap()
        length -= len(piece) * piece.itemsize
        yield piece.tobytes()
    yield from zeros(length)


def zeros(length: int) -> Iterator[bytes]:
    """Yield zeros in pieces of up to a MiB."""
    for start in range(0, length, _PIECE_BYTES):
        yield bytes(min(_PIECE_BYTES, length - start))
