# SPDX-License-Identifier: Apache-2.0
"""Deltas of changed disks, encoded and flattened without a gateway or a Glance."""

import pathlib
from collections.abc import Iterable
from collections.abc import Iterator

from acstor_common.disks import disk_delta
from acstor_common.disks import qcow2
from acstor_common.disks import qcow2_header
from acstor_common.disks import qcow2_writer
from acstor_common.formats import chunk_map
from acstor_common.formats import layout
from acstor_common.model import ids
from acstor_glance.gateway.flatten import merge_plan

BASE_ID = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
OS_HASH = chunk_map.OsHash("sha512", bytes(range(64)))


PART_BYTES = 1 << 20


class RawBase:
    """A raw backing image."""

    cluster_bytes, codec = 1 << 16, layout.Codec.STORED

    def __init__(self, source: qcow2_header.Source) -> None:
        self.source, self.virtual_size = source, source.size_bytes
        self.read_into = source.read_into

    def iter_extents(self) -> Iterator[layout.Extent]:
        yield layout.Extent(0, self.virtual_size, layout.Codec.STORED, 0, self.virtual_size)


Base = qcow2.Qcow2 | RawBase


def base_of(source: qcow2_header.Source, disk_format: str) -> Base:
    return qcow2.Qcow2(source) if disk_format == "qcow2" else RawBase(source)


def stream_of(overlay: qcow2.Qcow2, found: Iterable[disk_delta.Extent] | None = None) -> bytes:
    """Return the encoded delta of an overlay.

    :param found: the changed extents; None: all of the overlay's
    """
    found = overlay.iter_changes() if found is None else found
    table = disk_delta.ExtentTable.from_runs(found, overlay.virtual_size)
    writer = disk_delta.Writer(overlay.virtual_size, BASE_ID, OS_HASH, table)
    sent = [writer.front]
    for change in table:
        if change.kind is disk_delta.ExtentKind.DATA:
            data = memoryview(bytearray(change.length))
            overlay.read_into(data, change.at)
            writer.hash_data(data)
            sent.append(bytes(data))
    stream = b"".join([*sent, writer.make_trailer()])
    assert len(stream) == writer.head.stream_bytes
    return stream


class Received:
    """A decoded delta, read as the flattening reads it."""

    def __init__(self, stream: bytes) -> None:
        self._stream, self._at = memoryview(stream), 0
        self.reader = disk_delta.Reader("stream")
        self.head = self.reader.read_head(self._take(disk_delta.HEADER_BYTES))
        self.table = self.reader.read_table(self._take(self.head.table_bytes))

    def read(self, limit: int) -> memoryview:
        data = self._take(min(limit, 70_000))
        self.reader.hash_data(data)
        return data

    def end(self) -> None:
        self.reader.verify_trailer(self._take(disk_delta.TRAILER_BYTES))
        assert self._at == len(self._stream)

    def _take(self, length: int) -> memoryview:
        self._at += length
        return self._stream[self._at - length : self._at]


def compose(stream: bytes, base: Base, disk_format: str) -> Iterator[bytes]:
    """Yield the flattened image; assert that its length equals the planned one."""
    received, done = Received(stream), 0
    size = received.head.virtual_size

    def pieces() -> Iterator[merge_plan.DiskPiece]:
        return merge_plan.pieces(received.table, base.iter_extents(), size)

    def stretches() -> Iterator[merge_plan.ClusterRun]:
        return merge_plan.cluster_runs(pieces(), base.cluster_bytes)

    if disk_format == "raw":
        file_bytes, parts = size, bytes_of(pieces(), base, received)
    else:
        runs = lambda: (one.run for one in stretches())  # noqa: E731
        plan = qcow2_writer.Plan(size, base.cluster_bytes, base.codec, runs)
        again = stretches()
        file_bytes = plan.file_bytes
        parts = plan.iter_parts(lambda run: bytes_of(next(again).pieces, base, received))
    for part in parts:
        done += len(part)
        yield bytes(part)
    received.end()
    assert done == file_bytes


def bytes_of(
    pieces: Iterable[merge_plan.DiskPiece], base: Base, received: Received
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of pieces, at most PART_BYTES at a time."""
    for piece in pieces:
        if piece.origin is merge_plan.PieceOrigin.COMPRESSED:
            assert piece.extent is not None
            stored = memoryview(bytearray(piece.extent.stored_bytes))
            base.source.read_into(stored, piece.extent.offset)
            yield stored
            continue
        while piece.length:
            length = min(piece.length, PART_BYTES)
            data = memoryview(bytearray(length))
            if piece.origin is merge_plan.PieceOrigin.DELTA:
                data = received.read(length)
            elif piece.origin is merge_plan.PieceOrigin.BASE:
                base.read_into(data, piece.at)
            yield data
            piece = piece.slice_between(piece.at + len(data), piece.stop)


def write(path: pathlib.Path, parts: Iterable[bytes]) -> None:
    with path.open("wb") as file:
        file.writelines(parts)
