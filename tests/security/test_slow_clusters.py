# SPDX-License-Identifier: Apache-2.0
"""One guest reads clusters that take long to decode; another one's compressed reads go on."""

import mmap
import os
import pathlib
import shutil
import statistics
import struct
import time
import uuid
from collections.abc import Sequence

import pytest

from acstor_common import geometry
from acstor_common import ids
from tests.fakes import flood
from tests.fakes import hosts
from tests.fakes import qcow2_bombs
from tests.fakes import qcow2_images
from tests.lab import local

pytestmark = [
    hosts.needs_fuse,
    pytest.mark.skipif(shutil.which("qemu-img") is None, reason="needs qemu-img"),
]

CHUNK = geometry.DEFAULT_CHUNK_BYTES
CLUSTER = 1 << qcow2_bombs.MAX_CLUSTER_BITS
SLOW_CLUSTERS = 12
SLOW_STORED_BYTES = 3 * geometry.MIB
READS = 150
AT_MOST = 3.0
NOISE_S = 0.1
USUAL_NOISE_S = 0.02
"""A busy machine delays the slowest reads, and the usual ones, by so much."""


def add_slow(images: local.ImageFolder) -> ids.ImageId:
    """Add an image of SLOW_CLUSTERS clusters; the chunks in them are all different."""
    data = b"".join(
        struct.pack(">Q", number + 1) * (CHUNK // 8)
        for number in range(SLOW_CLUSTERS * CLUSTER // CHUNK)
    )
    image_id = ids.parse_image_id(str(uuid.uuid4()))
    stored = qcow2_bombs.slow_clusters(data, SLOW_STORED_BYTES)
    (images.folder / f"{image_id}.qcow2").write_bytes(stored)
    chunk_map = qcow2_images.map_of(stored, data, image_id, CHUNK)
    images.map_path(image_id).write_bytes(chunk_map)
    return image_id


def times_s(path: pathlib.Path, data: bytes, chunks: Sequence[int]) -> list[float]:
    """Return how long reads of chunks took that are not in the cache; every byte must be right."""
    took, buffer = [], mmap.mmap(-1, 4096)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        for chunk in chunks:
            began_s = time.perf_counter()
            os.preadv(fd, [buffer], chunk * CHUNK)
            took.append(time.perf_counter() - began_s)
            assert buffer[:] == data[chunk * CHUNK : chunk * CHUNK + 4096]
    finally:
        os.close(fd)
    return took


def p99_s(took: list[float]) -> float:
    return statistics.quantiles(took, n=100)[98]


def test_compressed_reads_of_a_guest_do_not_wait_for_slow_clusters_of_another(images, start):
    lines = 2 * READS * CHUNK // 36
    text = b"".join(b"line %d of text that compresses\n" % number for number in range(lines))
    data = text[: len(text) // CHUNK * CHUNK]
    other, slow = qcow2_images.add(images, data), add_slow(images)
    agent = start(variants="no-read-ahead")
    path = agent.image_path(other)
    chunks = range(1, len(data) // CHUNK)
    rest = times_s(path, data, chunks[0 : 2 * READS : 2])
    with flood.reading(agent.image_path(slow), SLOW_CLUSTERS * 4, 4096, CLUSTER // 4):
        time.sleep(0.2)
        beside = times_s(path, data, chunks[1 : 2 * READS : 2])
        read = agent.status()["images"][slow]["read"]["source"]["requests"]
    for name, of in (("p99", p99_s), ("median", statistics.median)):
        print(f"{name}: {of(rest) * 1000:.1f} ms, beside slow ones {of(beside) * 1000:.1f} ms")
    assert read < SLOW_CLUSTERS * 4  # they were decoded all the time
    assert p99_s(beside) < max(AT_MOST * p99_s(rest), NOISE_S)
    assert statistics.median(beside) < max(AT_MOST * statistics.median(rest), USUAL_NOISE_S)
