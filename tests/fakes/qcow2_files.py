# SPDX-License-Identifier: Apache-2.0
"""Hand-written small qcow2 files, for headers and tables that no tool writes.

The defaults make a valid file that QEMU opens; each test corrupts one field.
"""

import dataclasses
import struct
import zlib

import zstandard

from acstor_common.disks import qcow2_header

COMPRESSED, COPIED, ZERO = 1 << 62, 1 << 63, 1
END_OF_EXTENSIONS = struct.pack(">II", 0, 0)


@dataclasses.dataclass
class File:
    """A file's fields: header, L1 table, one L2 table, and data, a cluster each.

    The refcount table has a cluster and counts nothing.

    :param l2_entries: words of the L2 table; two for an entry with subclusters
    :param data: the bytes after the tables
    """

    version: int = 3
    cluster_bits: int = 12
    size: int = 1 << 20
    backing_offset: int = 0
    backing_length: int = 0
    crypt_method: int = 0
    incompatible: int = 0
    autoclear: int = 0
    refcount_order: int = 4
    header_length: int = 112
    compression: int = 0
    snapshots: int = 0
    snapshot_offset: int = 0
    l1_size: int | None = None
    l1_offset: int | None = None
    refcount_offset: int | None = None
    refcount_clusters: int = 1
    l1_entries: list[int] | None = None
    l2_entries: list[int] = dataclasses.field(default_factory=list)
    extensions: bytes = END_OF_EXTENSIONS
    data: bytes = b""

    @property
    def cluster_bytes(self) -> int:
        return 1 << self.cluster_bits

    @property
    def data_offset(self) -> int:
        """The offset of ``data``."""
        return 4 * self.cluster_bytes

    def pack(self) -> bytes:
        """Return the file's bytes."""
        cluster = self.cluster_bytes
        l1_entries = [3 * cluster | COPIED] if self.l1_entries is None else self.l1_entries
        fields = struct.pack(
            ">4sIQIIQIIQQIIQ",
            qcow2_header.MAGIC,
            self.version,
            self.backing_offset,
            self.backing_length,
            self.cluster_bits,
            self.size,
            self.crypt_method,
            len(l1_entries) if self.l1_size is None else self.l1_size,
            cluster if self.l1_offset is None else self.l1_offset,
            2 * cluster if self.refcount_offset is None else self.refcount_offset,
            self.refcount_clusters,
            self.snapshots,
            self.snapshot_offset,
        )
        if self.version >= 3:
            fields += struct.pack(
                ">QQQIIB7x",
                *(self.incompatible, 0, self.autoclear, self.refcount_order),
                *(self.header_length, self.compression),
            )
        header = (fields + self.extensions).ljust(cluster, b"\0")
        tables = _words(l1_entries, cluster), bytes(cluster), _words(self.l2_entries, cluster)
        return b"".join((header, *tables, self.data))


def _words(words: list[int], length: int) -> bytes:
    return struct.pack(f">{len(words)}Q", *words).ljust(length, b"\0")


def compressed_entry(offset: int, length: int, cluster_bits: int = 12) -> int:
    """Return the L2 entry of a compressed cluster of ``length`` bytes at ``offset``."""
    sectors = (offset + length - 1) // 512 - offset // 512
    return COMPRESSED | sectors << 62 - (cluster_bits - 8) | offset


def deflated(data: bytes) -> bytes:
    """Return ``data`` as QEMU compresses a cluster with deflate."""
    maker = zlib.compressobj(6, zlib.DEFLATED, -12)
    return maker.compress(data) + maker.flush()


def zstandard_of(data: bytes, *, says_its_size: bool = True) -> bytes:
    """Return ``data`` as QEMU compresses a cluster with zstd."""
    return zstandard.ZstdCompressor(write_content_size=says_its_size).compress(data)


class Bytes:
    """A file in memory that counts read bytes."""

    name = "image"

    def __init__(self, data: bytes, size_bytes: int | None = None) -> None:
        self._data = data
        self.size_bytes = len(data) if size_bytes is None else size_bytes
        self.read_bytes = 0

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fill ``view``; bytes beyond the data are zeros."""
        assert 0 <= offset <= offset + len(view) <= self.size_bytes
        view[:] = self._data[offset : offset + len(view)].ljust(len(view), b"\0")
        self.read_bytes += len(view)
