# SPDX-License-Identifier: Apache-2.0
"""Stream of the delta of a disk, which is read twice and must not change meanwhile."""

import logging
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import BinaryIO

from acstor_common.disks import disk_delta
from acstor_common.disks import local_file
from acstor_common.disks import qcow2
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_nova import agent_client

LOG = logging.getLogger(__name__)

PIECE_BYTES = geometry.MIB
BLOCK_BYTES = 64 * geometry.KIB  # unit of the search for zeros: the cluster size of Nova's disks
TELL_EVERY_S = 30.0
_ZEROS = bytes(BLOCK_BYTES)


class DeltaBody:
    """The delta of a disk as a stream, for one iteration; may raise TooManyExtents."""

    def __init__(
        self,
        disk: qcow2.Qcow2,
        base: ids.ImageId,
        zero_map: agent_client.ZeroMap,  # of its image
    ) -> None:
        self._disk = disk
        zeros = zero_extents(zero_map, disk.virtual_size)
        found = disk_delta.overlay(_without_zeros(disk), zeros)
        table = disk_delta.ExtentTable.from_runs(found, disk.virtual_size)
        self._writer = disk_delta.Writer(disk.virtual_size, base, zero_map.os_hash, table)
        self.head = self._writer.head

    def __len__(self) -> int:
        return self.head.stream_bytes

    def __iter__(self) -> Iterator[bytes]:
        front = self._writer.front
        yield from (front[at : at + PIECE_BYTES] for at in range(0, len(front), PIECE_BYTES))
        yield from _log_progress(self._data(), self.head.data_bytes)
        yield self._writer.make_trailer()

    def _data(self) -> Iterator[bytes]:
        for change in self._writer.table:
            if change.kind is disk_delta.ExtentKind.DATA:
                for _, piece in _pieces(self._disk, change):
                    self._writer.hash_data(piece)
                    yield piece


def open_disk(file: BinaryIO) -> qcow2.Qcow2:
    """Return the qcow2 disk in a file; raises errors.Unusable if it is not Nova's."""
    source = local_file.LocalFile(file.fileno(), str(file.name))
    return qcow2.Qcow2(source, disk_delta.MAX_VIRTUAL_BYTES, may_have_backing=True)


def zero_extents(zero_map: agent_client.ZeroMap, virtual_size: int) -> Iterator[disk_delta.Extent]:
    """Yield the zeros of an image as delta of a disk of ``virtual_size`` on it."""
    for chunk_no in filter(zero_map.is_zero, range(zero_map.cut.chunk_count)):
        at = chunk_no * zero_map.cut.chunk_bytes
        length = min(zero_map.cut.chunk_bytes, virtual_size - at)
        if length > 0:
            yield disk_delta.Extent(at, length, disk_delta.ExtentKind.ZERO)


def _without_zeros(disk: qcow2.Qcow2) -> Iterator[disk_delta.Extent]:
    """Yield the delta of a disk, with data that is zeros marked as such."""
    for change in disk.iter_changes():
        if change.kind is disk_delta.ExtentKind.ZERO:
            yield change
            continue
        for at, piece in _pieces(disk, change):
            for begin in range(0, len(piece), BLOCK_BYTES):
                block = piece[begin : begin + BLOCK_BYTES]
                is_zero = block == _ZEROS[: len(block)]
                kind = disk_delta.ExtentKind.ZERO if is_zero else disk_delta.ExtentKind.DATA
                yield disk_delta.Extent(at + begin, len(block), kind)


def _pieces(disk: qcow2.Qcow2, change: disk_delta.Extent) -> Iterator[tuple[int, bytes]]:
    for at in range(change.at, change.stop, PIECE_BYTES):
        piece = bytearray(min(PIECE_BYTES, change.stop - at))
        disk.read_into(memoryview(piece), at)
        time.sleep(0)  # yields to other green threads under eventlet
        yield at, bytes(piece)


def _log_progress(
    pieces: Iterable[bytes], total_bytes: int, clock: Callable[[], float] = time.monotonic
) -> Iterator[bytes]:
    done_bytes, logged_s = 0, clock()
    for piece in pieces:
        if (now_s := clock()) - logged_s >= TELL_EVERY_S:
            logged_s = now_s
            LOG.info("%d of %d bytes of the delta are sent", done_bytes, total_bytes)
        yield piece
        done_bytes += len(piece)
