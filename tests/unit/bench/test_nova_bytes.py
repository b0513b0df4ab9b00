# SPDX-License-Identifier: Apache-2.0
import shutil

import pytest

from acstor_common.model import geometry
from evaluation.bench import p12_nova
from tests.fakes import qcow2_images
from tests.lab import local

CHUNK = geometry.DEFAULT_CHUNK_BYTES


def test_chunks_of_a_raw_image_need_their_length(images: local.ImageFolder) -> None:
    image_map = images.map_of(images.add(local.random_bytes(5 * CHUNK + 512)))
    assert p12_nova.stored_bytes(image_map, [0, 3]) == 2 * CHUNK
    assert p12_nova.stored_bytes(image_map, [5]) == 512


@pytest.mark.skipif(shutil.which("qemu-img") is None, reason="qemu-img is not installed")
@pytest.mark.parametrize("kind", ["deflate", "small clusters", "large clusters", "stored"])
def test_stored_bytes_shared_by_chunks_of_a_qcow2_image_count_once(
    images: local.ImageFolder, kind: str
) -> None:
    data = local.random_bytes(CHUNK * 32 // 2).hex().encode()
    image_id = qcow2_images.add(images, data, qcow2_images.KINDS[kind])
    image_map = images.map_of(image_id)
    size = (images.folder / f"{image_id}.qcow2").stat().st_size
    of_all = p12_nova.stored_bytes(image_map, list(range(len(image_map))))
    assert 0.5 * len(data) <= of_all <= size
    of_each = [p12_nova.stored_bytes(image_map, [number]) for number in range(len(image_map))]
    shares = kind == "large clusters"  # of 2 MiB: each chunk needs the whole stream
    assert (max(of_each) > 0.9 * of_all) is shares
    if kind == "stored":
        assert set(of_each) == {CHUNK}
