# SPDX-License-Identifier: Apache-2.0
"""Hostile qcow2 files: small, valid uploads that cause much work.

QEMU opens each of them.  They differ in their L2 entries:

* :func:`aliased`: all name one compressed cluster;
* :func:`expanding`: each names a short stream that decodes to a whole cluster;
* :func:`slow`: each names a long stream, mostly of empty deflate blocks;
* :func:`slow_clusters`: the same, with distinct bytes in all clusters;
* :func:`empty`: they name nothing.
"""

import struct
import zlib
from collections.abc import Callable

from acstor_common.model import geometry
from tests.fakes import qcow2_files

MAX_CLUSTER_BITS = 21
_CODE_LENGTH_ORDER = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1)


def _empty_block() -> str:
    """Return the bits, first to last, of a dynamic deflate block without data.

    A decoder needs a microsecond for its 92 bits, which describe the code of the block's end.
    """
    lengths = {18: 1, 0: 2, 1: 2}
    run, zero, one = "0", "10", "11"
    head = (
        _bits(0, 1)
        + _bits(2, 2)
        + _bits(0, 5)
        + _bits(0, 5)
        + _bits(len(_CODE_LENGTH_ORDER) - 4, 4)
    )
    head += "".join(_bits(lengths.get(symbol, 0), 3) for symbol in _CODE_LENGTH_ORDER)
    literals = run + _bits(138 - 11, 7) + run + _bits(118 - 11, 7) + one  # 256 zeros, then the end
    distances = zero
    return head + literals + distances + "0"


def _bits(value: int, count: int) -> str:
    return format(value, f"0{count}b")[::-1]


# Two blocks are a whole number of bytes.
_EMPTY_BLOCKS = int((2 * _empty_block())[::-1], 2).to_bytes(23, "little")

Place = Callable[[int], tuple[int, int]]
"""Maps a cluster's number to its stream's offset in the data, and its length."""


def slow_stream(stored_bytes: int, decoded: bytes) -> bytes:
    """Return a deflate stream of ``stored_bytes`` that decodes to ``decoded``."""
    end = _deflated(decoded)
    count = (stored_bytes - len(end)) // len(_EMPTY_BLOCKS)
    return _EMPTY_BLOCKS * count + end


def longest_stream(cluster_bits: int) -> int:
    """Return the maximum stored bytes of a compressed cluster."""
    return 2 << cluster_bits


def aliased(
    size: int, cluster_bits: int = MAX_CLUSTER_BITS, stored_bytes: int | None = None
) -> bytes:
    """Return a file whose L2 entries all name one slow compressed cluster.

    :param size: bytes of the disk
    :param stored_bytes: of the cluster; None: the maximum of an entry
    """
    length = longest_stream(cluster_bits) if stored_bytes is None else stored_bytes
    stream = slow_stream(length, b"\x01" * (1 << cluster_bits))
    return _file(size, cluster_bits, stream, lambda number: (0, len(stream)))


def expanding(size: int, cluster_bits: int = MAX_CLUSTER_BITS) -> bytes:
    """Return a file whose clusters are short streams of their own."""
    cluster_bytes = 1 << cluster_bits
    streams = [
        _deflated(struct.pack(">Q", number + 1) * (cluster_bytes // 8))
        for number in range(-(-size // cluster_bytes))
    ]
    starts = [0]
    for stream in streams:
        starts.append(starts[-1] + len(stream))
    data = b"".join(streams)
    return _file(size, cluster_bits, data, lambda number: (starts[number], len(streams[number])))


def slow(size: int, cluster_bits: int = MAX_CLUSTER_BITS) -> bytes:
    """Return a file whose clusters are distinct slow streams.

    The streams overlap: all have the same end, and each has a few more empty blocks than the last.

    :param size: bytes of the disk; limited by the number of blocks of a stream
    """
    stream = slow_stream(longest_stream(cluster_bits) - 512, b"\x01" * (1 << cluster_bits))
    last = (-(-size // (1 << cluster_bits)) - 1) * len(_EMPTY_BLOCKS)
    assert last < len(stream) // 2

    def place(number: int) -> tuple[int, int]:
        skipped = last - number * len(_EMPTY_BLOCKS)
        return skipped, len(stream) - skipped

    return _file(size, cluster_bits, stream, place)


def slow_clusters(data: bytes, stored_bytes: int, cluster_bits: int = MAX_CLUSTER_BITS) -> bytes:
    """Return a disk's file with slow streams of ``stored_bytes`` as clusters.

    :param data: the disk, a whole number of clusters
    """
    cluster_bytes = 1 << cluster_bits
    streams = [
        slow_stream(stored_bytes, data[at : at + cluster_bytes]).ljust(stored_bytes, b"\0")
        for at in range(0, len(data), cluster_bytes)
    ]
    place = lambda number: (number * stored_bytes, stored_bytes)  # noqa: E731
    return _file(len(data), cluster_bits, b"".join(streams), place)


def empty(size: int, cluster_bits: int = 16) -> bytes:
    """Return a file of a disk that is all zeros."""
    return _file(size, cluster_bits, b"", None)


def _file(size: int, cluster_bits: int, data: bytes, place: Place | None) -> bytes:
    """Return a file with the L2 tables of its disk, followed by ``data``.

    :param place: None: no cluster is allocated
    """
    cluster_bytes = 1 << cluster_bits
    clusters, per_table = -(-size // cluster_bytes), cluster_bytes // 8
    tables = -(-clusters // per_table)
    made = qcow2_files.File(cluster_bits=cluster_bits, size=size)
    if place is None:
        made.l1_entries = [0] * tables
        return made.pack()
    made.l1_entries = [
        made.data_offset + number * cluster_bytes | qcow2_files.COPIED for number in range(tables)
    ]
    data_at = made.data_offset + tables * cluster_bytes
    entries = []
    for number in range(clusters):
        offset, length = place(number)
        entries.append(qcow2_files.compressed_entry(data_at + offset, length, cluster_bits))
    packed = struct.pack(f">{len(entries)}Q", *entries)
    made.data = packed.ljust(tables * cluster_bytes, b"\0") + data
    made.data += bytes(-len(made.data) % 512)
    return made.pack()


def _deflated(data: bytes) -> bytes:
    maker = zlib.compressobj(9, zlib.DEFLATED, -12)
    step = geometry.MIB
    parts = [maker.compress(data[at : at + step]) for at in range(0, len(data), step)]
    return b"".join((*parts, maker.flush()))
