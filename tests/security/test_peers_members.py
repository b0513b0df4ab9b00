# SPDX-License-Identifier: Apache-2.0
"""Hosts of the ring that flood an agent, and the latency of a guest of that host."""

import mmap
import os
import time

import pytest

from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import flood_members
from tests.fakes import hosts
from tests.lab import local

pytestmark = hosts.needs_fuse

DATA = local.random_bytes(4 * geometry.MIB, seed=17)
MEMBERS = [f"bad{number}" for number in range(48)]
KINDS = ("pings", "cancels", "hurries", "gets")
ATTACK_S = 5.0
BOUND_S, LONGEST_S = 0.010, 0.25
"""p99 of the reads, and the longest one: the flood starts with the full burst of its hosts."""
NOISE = 10.0
"""On a busy machine reads at rest take longer than the bound, too."""


@pytest.fixture
def image_id(images):
    return images.add(DATA)


def write_ring_with(cloud: hosts.Cloud, others: list[str]) -> None:
    """Put hosts on the ring that own next to no chunks."""
    ports = {**cloud.ports, **{name: number for number, name in enumerate(others, 1)}}
    vnodes = dict.fromkeys(others, 1) | dict.fromkeys(cloud.ports, 1000)
    hosts.write_ring(cloud.ring_file, ports, 2, vnodes)
    hosts.wait_until(lambda: cloud["h1"].status()["ring"]["epoch"] == 2, "the table")


def reads_for(path: os.PathLike[str], time_s: float) -> list[float]:
    """Return how long each of a guest's cached reads took, in ascending order."""
    fd, took = os.open(path, os.O_RDONLY | os.O_DIRECT), []
    try:
        with mmap.mmap(-1, 4096) as buffer:
            ends = time.monotonic() + time_s
            while (began := time.monotonic()) < ends:
                offset = len(took) * 4096 % len(DATA)
                assert os.preadv(fd, [buffer], offset) == 4096
                took.append(time.monotonic() - began)
                assert buffer[:4096] == DATA[offset : offset + 4096]
                time.sleep(0.001)
    finally:
        os.close(fd)
    return sorted(took)


def p99(took: list[float]) -> float:
    return took[len(took) * 99 // 100]


def test_flood_of_small_messages_from_members_delays_no_guest(
    tmp_path, images, image_id: ids.ImageId
):
    with hosts.cloud(tmp_path, images, ("h1",), security="secure", life_s=90) as cloud:
        write_ring_with(cloud, MEMBERS)
        path = cloud["h1"].image_path(image_id)
        assert path.read_bytes() == DATA
        rest = reads_for(path, 1.0)
        port = cloud.ports["h1"]
        with flood_members.flooding(port, "h1", image_id, MEMBERS, KINDS, processes=2):
            took = reads_for(path, ATTACK_S)
        rest_ms, took_ms, most_ms = (1000 * one for one in (p99(rest), p99(took), took[-1]))
        print(f"p99 {rest_ms:.2f} ms at rest, {took_ms:.2f} ms beside it, {most_ms:.0f} at most")
        assert p99(took) < max(BOUND_S, NOISE * p99(rest))
        assert took[-1] < max(LONGEST_S, NOISE * rest[-1])
