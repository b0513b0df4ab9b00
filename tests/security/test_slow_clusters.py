# SPDX-License-Identifier: Apache-2.0
"""One guest reads clusters that decode slowly, while another one reads compressed clusters."""

import shutil
import statistics
import time

import pytest

from acstor_common.model import geometry
from tests.fakes import dos_attacks
from tests.fakes import flood
from tests.fakes import hosts
from tests.fakes import qcow2_images

pytestmark = [
    pytest.mark.timed,
    hosts.needs_fuse,
    pytest.mark.skipif(shutil.which("qemu-img") is None, reason="needs qemu-img"),
]

CHUNK = geometry.DEFAULT_CHUNK_BYTES
READS = 150
AT_MOST = 3.0
NOISE_S = 0.1
USUAL_NOISE_S = 0.02
"""Delay of the slowest and of typical reads that a busy machine may add."""


def test_compressed_reads_of_a_guest_do_not_wait_for_slow_clusters_of_another(images, start):
    lines = 2 * READS * CHUNK // 36
    text = b"".join(b"line %d of text that compresses\n" % number for number in range(lines))
    data = text[: len(text) // CHUNK * CHUNK]
    other, slow = qcow2_images.add(images, data), dos_attacks.slow_image(images)
    agent = start(variants="no-read-ahead")
    path = agent.image_path(other)
    chunks = range(1, len(data) // CHUNK)
    rest = dos_attacks.chunk_times_s(path, data, chunks[0 : 2 * READS : 2])
    with flood.reading(
        agent.image_path(slow),
        dos_attacks.SLOW_CLUSTERS * 4,
        4096,
        dos_attacks.CLUSTER // 4,
    ):
        time.sleep(0.2)
        beside = dos_attacks.chunk_times_s(path, data, chunks[1 : 2 * READS : 2])
        read = agent.status()["images"][slow]["read"]["source"]["requests"]
    for name, of in (("p99", dos_attacks.p99_s), ("median", statistics.median)):
        print(f"{name}: {of(rest) * 1000:.1f} ms, beside slow ones {of(beside) * 1000:.1f} ms")
    assert read < dos_attacks.SLOW_CLUSTERS * 4  # they were being decoded all the time
    assert dos_attacks.p99_s(beside) < max(AT_MOST * dos_attacks.p99_s(rest), NOISE_S)
    assert statistics.median(beside) < max(AT_MOST * statistics.median(rest), USUAL_NOISE_S)
