# SPDX-License-Identifier: Apache-2.0
"""Two disk images with a common package: scenario of Nicolae, Karve, Kochut 2015.

Each is an ext4 file system with the common package and packages of its own, written through a
mount.  The kernel's allocator places large files in long extents at multiples of large powers of
two, so equal files yield equal chunks at different offsets.  ``mkfs -d`` would place them at any
4 KiB block, where equal 64 KiB chunks are rare.
"""

import contextlib
import hashlib
import mmap
import os
import pathlib
import random
import re
import uuid
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple

from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_glance.prepare import prehash
from tests.lab import local
from tests.lab import runs

IMAGE_BYTES = 512 * geometry.MIB
"""Sparse.  mke2fs treats smaller ones as special, with blocks of 1 KiB."""
BLOCK_BYTES = 4096
COMMON_NAME = "common.tar.gz"
OWN_PACKAGES_BYTES = ((7_000_003, 1_000_001), (3_333_333, 12_333_337))
"""Other packages of each image; they place the common one at different offsets."""

Spans = tuple[tuple[int, int], ...]
"""(offset, length) in bytes, in file order, in whole file system blocks."""

_EXTENT = re.compile(r"^ *[0-9]+: +[0-9]+\.\. *[0-9]+: +([0-9]+)\.\. *([0-9]+):", re.MULTILINE)


class CommonImage(NamedTuple):
    """One of the images, and the extents of the common package."""

    image_id: ids.ImageId
    spans: Spans


def make_two(images: local.ImageFolder, common_bytes: int) -> list[CommonImage]:
    """Make both images and their chunk maps in ``images``."""
    common = random.Random(0).randbytes(common_bytes)
    made = []
    for number, own_bytes in enumerate(OWN_PACKAGES_BYTES):
        image_id = ids.parse_image_id(str(uuid.uuid4()))
        path = images.path(image_id)
        packages = {
            f"own-{part}.tar.gz": random.Random(f"{number}/{part}").randbytes(length)
            for part, length in enumerate(own_bytes)
        }
        spans = write_image(path, {**packages, COMMON_NAME: common})[COMMON_NAME]
        prehash.prehash(path, images.map_path(image_id), image_id)
        made.append(CommonImage(image_id, spans))
    return made


def write_image(path: pathlib.Path, files: dict[str, bytes]) -> dict[str, Spans]:
    """Make an ext4 image with these files, in this order; return their extents.

    It syncs each file before closing it, like most of a long one.  The allocator packs the end of a
    closed file, which would start its chunks at any offset.

    :raises errors.Unusable: not root, or no loop device
    """
    with path.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    runs.tool(["mkfs.ext4", "-q", "-F", "-b", str(BLOCK_BYTES), path])
    folder = path.with_suffix(".mount")
    with _mounted(path, folder):
        for name, data in files.items():
            with (folder / name).open("wb") as file:
                file.write(data)
                os.fsync(file.fileno())
        show = ["filefrag", "-e", f"-b{BLOCK_BYTES}"]
        return {name: extents(runs.tool([*show, folder / name])) for name in files}


@contextlib.contextmanager
def _mounted(path: pathlib.Path, folder: pathlib.Path) -> Iterator[None]:
    folder.mkdir()
    try:
        runs.tool(["mount", "-o", "loop", path, folder])
        try:
            yield
        finally:
            runs.tool(["umount", folder])
    finally:
        folder.rmdir()


def extents(listing: str) -> Spans:
    """Return the (offset, length) in bytes that ``filefrag -e -b4096`` lists."""
    return tuple(
        (int(first) * BLOCK_BYTES, (int(last) - int(first) + 1) * BLOCK_BYTES)
        for first, last in _EXTENT.findall(listing)
    )


Ranges = tuple[bytes | mmap.mmap, Sequence[tuple[int, int]]]
"""An image's bytes, and the (offset, length) of ranges."""


def common_share(
    first: Ranges, second: Ranges, chunk_bytes: int = geometry.DEFAULT_CHUNK_BYTES
) -> float:
    """Return the share of the chunks in the first ranges that also are in the second.

    >>> chunk = geometry.DEFAULT_CHUNK_BYTES
    >>> common_share((bytes(chunk), [(0, chunk)]), (b"." + bytes(chunk), [(1, chunk)]))
    0.0
    """
    ours, theirs = (_digests(data, spans, chunk_bytes) for data, spans in (first, second))
    return sum(digest in theirs for digest in ours) / len(ours)


def _digests(data: bytes | mmap.mmap, spans: Sequence[tuple[int, int]], size: int) -> list[bytes]:
    numbers = sorted(
        {
            number
            for offset, length in spans
            for number in range(offset // size, -(-(offset + length) // size))
        }
    )
    return [hashlib.blake2b(data[at * size : (at + 1) * size]).digest() for at in numbers]
