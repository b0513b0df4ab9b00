# SPDX-License-Identifier: Apache-2.0
"""Chains of snapshots, flattened from a base and QEMU's writes, with chunk maps.

The gateway's own code flattens them; no Glance and no HTTP is involved.
"""

import contextlib
import mmap
import os
import pathlib
import uuid
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple

from acstor_common.disks import disk_delta
from acstor_common.disks import local_file
from acstor_common.disks import qcow2
from acstor_common.formats import chunk_map
from acstor_common.model import ids
from acstor_glance.prepare import format_check
from acstor_glance.prepare import prehash
from tests.fakes import changed_disks
from tests.fakes import qcow2_corpus


class Image(NamedTuple):
    """A stored file and its chunk map file."""

    path: pathlib.Path
    disk_format: str
    map_path: pathlib.Path

    @contextlib.contextmanager
    def chunk_map(self) -> Iterator[chunk_map.ChunkMap]:
        """Yield the chunk map, which is open within the block."""
        with (
            self.map_path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping,
            memoryview(mapping) as view,
        ):
            yield chunk_map.ChunkMap.parse(view, str(self.map_path))

    def guest_bytes(self) -> bytes:
        """Return the guest's view of the disk, as QEMU reads it."""
        out = self.path.with_suffix(".guest")
        words = ["convert", "-f", self.disk_format, "-O", "raw", self.path, out]
        qcow2_corpus.qemu_img(*words)
        try:
            return out.read_bytes()
        finally:
            out.unlink()


def stored(path: pathlib.Path, disk_format: str, maps: pathlib.Path) -> Image:
    """Return the image in a file, with its chunk map."""
    map_path = maps / f"{path.name}.acmap"
    image_id = ids.parse_image_id(str(uuid.uuid4()))
    prehash.prehash(
        path, map_path, image_id, disk_format=format_check.parse_disk_format(disk_format)
    )
    return Image(path, disk_format, map_path)


def snapshot(
    base: Image, path: pathlib.Path, disk_format: str, maps: pathlib.Path, writes: Sequence[str]
) -> Image:
    """Return the image flattened from a base and the writes of ``qemu-io``."""
    overlay = maps / f"{path.name}.overlay"
    words = ["-b", base.path, "-F", base.disk_format, overlay]
    qcow2_corpus.qemu_img("create", "-q", "-f", "qcow2", *words)
    qcow2_corpus.qemu_io(overlay, tuple(writes))
    with overlay.open("rb") as file, base.path.open("rb") as base_file:
        disk = qcow2.Qcow2(source_of(file), disk_delta.MAX_VIRTUAL_BYTES, may_have_backing=True)
        below = changed_disks.base_of(source_of(base_file), base.disk_format)
        stream = changed_disks.stream_of(disk)
        _write(path, changed_disks.compose(stream, below, disk_format))
    overlay.unlink()
    return stored(path, disk_format, maps)


def _write(path: pathlib.Path, parts: Iterable[bytes]) -> None:
    """Write a file as a Glance store with thin provisioning does: zeros are holes."""
    with path.open("wb") as file:
        for part in parts:
            if part.count(0) == len(part):
                file.seek(len(part), os.SEEK_CUR)
            else:
                file.write(part)
        file.truncate(file.tell())


def source_of(file: object) -> local_file.LocalFile:
    """Return an open file as an image source."""
    return local_file.LocalFile(file.fileno(), str(file.name))  # type: ignore[attr-defined]
