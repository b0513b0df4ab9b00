# SPDX-License-Identifier: Apache-2.0
"""Disks that were changed, sent as changes and composed again, all in memory or in files."""

import pathlib
from collections.abc import Iterable
from collections.abc import Iterator

from acstor_common import changes
from acstor_common import chunk_map
from acstor_common import composition
from acstor_common import ids
from acstor_common import qcow2
from acstor_common import qcow2_header

BASE_ID = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
OS_HASH = chunk_map.OsHash("sha512", bytes(range(64)))


def base_of(source: qcow2_header.Source, disk_format: str) -> composition.Base:
    return qcow2.Qcow2(source) if disk_format == "qcow2" else composition.RawBase(source)


def stream_of(overlay: qcow2.Qcow2, found: Iterable[changes.Change] | None = None) -> bytes:
    """Return what is sent of an overlay.

    :param found: its changes, if they are not all that it has
    """
    found = overlay.changes() if found is None else found
    table = changes.Table.of(found, overlay.virtual_size)
    writer = changes.Writer(overlay.virtual_size, BASE_ID, OS_HASH, table)
    sent = [writer.front]
    for change in table:
        if change.kind is changes.Kind.DATA:
            data = memoryview(bytearray(change.length))
            overlay.read_into(data, change.at)
            writer.feed(data)
            sent.append(bytes(data))
    stream = b"".join([*sent, writer.end()])
    assert len(stream) == writer.head.stream_bytes
    return stream


class Received:
    """Changes that came in, given out as a composition asks for them."""

    def __init__(self, stream: bytes) -> None:
        self._stream, self._at = memoryview(stream), 0
        self.reader = changes.Reader("stream")
        self.head = self.reader.head(self._take(changes.HEADER_BYTES))
        self.table = self.reader.table(self._take(self.head.table_bytes))

    def read(self, limit: int) -> memoryview:
        data = self._take(min(limit, 70_000))
        self.reader.feed(data)
        return data

    def end(self) -> None:
        self.reader.end(self._take(changes.TRAILER_BYTES))
        assert self._at == len(self._stream)

    def disk(self, base: composition.Base) -> composition.Disk:
        return composition.Disk(self.head.virtual_size, self.table, base)

    def _take(self, length: int) -> memoryview:
        self._at += length
        return self._stream[self._at - length : self._at]


def compose(stream: bytes, base: composition.Base, disk_format: str) -> Iterator[bytes]:
    """Yield the file, and check that its length was known before."""
    received, done = Received(stream), 0
    make = composition.as_qcow2 if disk_format == "qcow2" else composition.as_raw
    file_bytes, parts = make(received.disk(base), received.read)
    for part in parts:
        done += len(part)
        yield bytes(part)
    received.end()
    assert done == file_bytes


def write(path: pathlib.Path, parts: Iterable[bytes]) -> None:
    with path.open("wb") as file:
        file.writelines(parts)
