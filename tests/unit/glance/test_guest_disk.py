# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import random
import subprocess

import pytest

from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.formats import layout
from acstor_common.model import ids
from acstor_glance.boot import guest_disk
from acstor_glance.prepare import prehash

IMAGE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
CHUNK = 65536
DATA = b"".join(
    bytes(CHUNK) if n % 3 == 0 else random.Random(n).randbytes(CHUNK // 2) * 2 for n in range(40)
)


@pytest.fixture(params=["raw", "stored", "deflate", "zstd"])
def disk(request: pytest.FixtureRequest, tmp_path: pathlib.Path):
    image, disk_format = tmp_path / "raw", layout.DiskFormat.RAW
    image.write_bytes(DATA)
    if request.param != "raw":
        kind = {"stored": [], "deflate": ["-c"], "zstd": ["-c", "-o", "compression_type=zstd"]}
        convert = ["qemu-img", "convert", "-f", "raw", "-O", "qcow2", *kind[request.param]]
        subprocess.run([*convert, image, tmp_path / "qcow2"], check=True, timeout=60)
        image, disk_format = tmp_path / "qcow2", layout.DiskFormat.QCOW2
    prehash.prehash(image, tmp_path / "map", IMAGE, disk_format=disk_format)
    image_map = chunk_map.ChunkMap.parse((tmp_path / "map").read_bytes(), "the map")
    with image.open("r+b") as file:
        yield guest_disk.GuestDisk(file.fileno(), image_map)


def test_any_range_equals_the_disk_of_the_guest(disk: guest_disk.GuestDisk) -> None:
    assert disk.size_bytes == len(DATA)
    assert disk.read(0, len(DATA)) == DATA
    some = random.Random(1)
    for _ in range(200):
        offset = some.randrange(len(DATA))
        length = some.randrange(1, 5 * CHUNK)
        assert disk.read(offset, length) == DATA[offset : offset + length].ljust(length, b"\0")
    assert disk.read(len(DATA) + 512, 512) == bytes(512)


def test_truncated_file_reads_as_zeros_or_an_error(disk: guest_disk.GuestDisk) -> None:
    os.ftruncate(disk._file, 600_000)
    try:
        data = disk.read(0, len(DATA))
    except errors.Unusable as exc:
        assert f"image {IMAGE}" in str(exc)
    else:
        assert data[:CHUNK] == DATA[:CHUNK] and data != DATA
