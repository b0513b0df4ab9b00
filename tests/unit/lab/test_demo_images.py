# SPDX-License-Identifier: Apache-2.0
import pathlib
import random
import shutil

import pytest

from acstor_common.formats import layout
from acstor_common.model import ids
from acstor_glance.prepare import prehash
from tests.fakes import qcow2_images
from tests.lab import demo_images
from tests.lab import image_server

CLUSTER = 65_536


def asked(name: str, start: int, stop: int) -> image_server.Request:
    of_all = f"bytes {start}-{stop - 1}/1000000"
    return image_server.Request("h1", f"/{name}", 206, stop - start, of_all, "GET", 0.1)


@pytest.mark.skipif(shutil.which("qemu-img") is None, reason="qemu-img is not installed")
def test_ranges_of_a_compressed_image_count_by_their_raw_bytes(
    tmp_path: pathlib.Path,
) -> None:
    text = random.Random(1).randbytes(CLUSTER // 2).hex().encode()  # compresses to half
    (tmp_path / "raw").write_bytes(text * 30 + bytes(CLUSTER) + text * 10)
    qcow2 = tmp_path / demo_images.QCOW2_NAME
    qcow2_images.converted(tmp_path / "raw", qcow2)
    map_path = qcow2.with_suffix(".acmap")
    image_id = ids.parse_image_id(demo_images.IMAGE_ID)
    prehash.prehash(qcow2, map_path, image_id, disk_format=layout.DiskFormat.QCOW2)
    size = qcow2.stat().st_size
    whole = [asked(demo_images.QCOW2_NAME, 0, size)]
    assert size < 30 * CLUSTER
    assert demo_images.bytes_as_raw(whole, tmp_path) == 40 * CLUSTER  # and no zeros
    halves = [
        asked(demo_images.QCOW2_NAME, 0, size // 2),
        asked(demo_images.QCOW2_NAME, size // 2, size),
    ]
    assert demo_images.bytes_as_raw(halves, tmp_path) == pytest.approx(40 * CLUSTER, abs=2)
    assert demo_images.bytes_as_raw(whole * 2, tmp_path) == 80 * CLUSTER


def test_ranges_without_a_layout_count_unchanged(tmp_path: pathlib.Path) -> None:
    requests = [asked(f"{demo_images.IMAGE_ID}.acmap", 0, 1000), asked(demo_images.RAW_NAME, 5, 10)]
    assert demo_images.bytes_as_raw(requests, tmp_path) == 1005


def test_range_between_pieces_counts_as_empty() -> None:
    pieces = demo_images.in_order(
        [demo_images.Piece(5000, 100, 400), demo_images.Piece(1000, 512, 4096)]
    )
    assert demo_images.weigh(pieces, 0, 1000) == 0
    assert demo_images.weigh(pieces, 1512, 5000) == 0
    assert demo_images.weigh(pieces, 5050, 9000) == 200
