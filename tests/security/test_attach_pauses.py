# SPDX-License-Identifier: Apache-2.0
"""Cost of an image that claims to be large, for other guests and the memory of a real agent."""

import os

import pytest

from acstor_common.model import geometry
from tests.fakes import dos_attacks
from tests.fakes import hosts
from tests.lab import local

pytestmark = [hosts.needs_fuse, pytest.mark.timed]

CHUNK = geometry.DEFAULT_CHUNK_BYTES
P99_S = 0.010
MEMORY_BYTES_FOR_GIB = 0.3 * geometry.MIB


def test_attach_and_stat_of_two_tebibytes_delay_no_cached_read(images, start):
    agent = start(cache_limit_bytes=256 * geometry.MIB)
    data = local.random_bytes(64 * CHUNK)
    path = agent.image_path(images.add(data))
    assert path.read_bytes() == data
    large = dos_attacks.large_image(images)
    rest_s = min(dos_attacks.p99_s(dos_attacks.reads(path, data)) for _ in range(2))
    before_bytes = agent.own_memory_bytes()
    attach = dos_attacks.reads_beside(
        path, data, lambda: os.close(os.open(agent.image_path(large), os.O_RDONLY))
    )
    assert os.stat(agent.image_path(large)).st_size == dos_attacks.LARGE_GIB * dos_attacks.GIB
    stat = dos_attacks.reads_beside(path, data, lambda: os.stat(agent.image_path(large)))
    grown_bytes = agent.own_memory_bytes() - before_bytes
    of_gib = grown_bytes / dos_attacks.LARGE_GIB / 2**20
    print(
        f"p99 of cached reads: {1e3 * rest_s:.2f} ms; beside the attach ({sum(attach):.1f} s) "
        f"{1e3 * dos_attacks.p99_s(attach):.2f} ms, at worst {1e3 * max(attach):.0f} ms, stat "
        f"{1e3 * dos_attacks.p99_s(stat):.2f} ms; {of_gib:.3f} MiB of memory a GiB"
    )
    limit_s = max(P99_S, 3 * rest_s)  # a busy machine is slow at rest
    assert dos_attacks.p99_s(attach) < limit_s and dos_attacks.p99_s(stat) < limit_s
    assert grown_bytes < dos_attacks.LARGE_GIB * MEMORY_BYTES_FOR_GIB
