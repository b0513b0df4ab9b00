# SPDX-License-Identifier: Apache-2.0
"""Many images on one host: open descriptors are bounded, and all images are listed and readable."""

import os
import random
import resource
import time
import uuid
from collections.abc import Mapping
from concurrent import futures

import pytest

from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import chunk_maps
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local
from tests.lab import runs

pytestmark = hosts.needs_fuse

IMAGES = 300
DESCRIPTORS = 192
"""Limit of open files: 64 of them are files of the source, which are reused."""
MANY_IMAGES = (1500, 10_000)
MANY_DESCRIPTORS = 1024
"""systemd's default of LimitNOFILE: below the number of images."""
READERS = 8
LIFE_S = 500.0
LONG_TURN_S = 0.01
"""A cached read of another guest waits for the end of a turn of the event loop."""
IMAGE_BYTES = 4096


def body(n: int) -> bytes:
    return random.Random(n).randbytes(IMAGE_BYTES)


def add_images(images: local.ImageFolder, count: int) -> dict[ids.ImageId, int]:
    """Add images of one chunk each, and return the seed of each image's body."""
    cut = geometry.Geometry(IMAGE_BYTES, geometry.DEFAULT_CHUNK_BYTES)
    added = {ids.parse_image_id(str(uuid.uuid4())): n for n in range(count)}
    for image_id, n in added.items():
        images.path(image_id).write_bytes(body(n))
        made = chunk_maps.made(image_id, cut, [ids.cid_of(body(n))])
        images.map_path(image_id).write_bytes(made)
    return added


def wrong_or_failed(agent: agents.Agent, added: Mapping[ids.ImageId, int]) -> list[str]:
    """Read each image once in several threads, and return what failed."""

    def read(one: tuple[ids.ImageId, int]) -> str:
        try:
            is_right = agent.image_path(one[0]).read_bytes() == body(one[1])
        except OSError as e:
            return f"{one[0]}: {e}"
        return "" if is_right else f"{one[0]}: other bytes"

    with futures.ThreadPoolExecutor(READERS) as readers:
        return [wrong for wrong in readers.map(read, added.items()) if wrong]


def limit_descriptors(agent: agents.Agent, limit: int) -> int:
    worker = agent.worker_pid()
    assert worker is not None
    resource.prlimit(worker, resource.RLIMIT_NOFILE, (limit, limit))
    return worker


def test_three_hundred_images_are_listed_and_read_with_few_descriptors(images, start):
    data = add_images(images, IMAGES)
    agent = start()
    worker = limit_descriptors(agent, DESCRIPTORS)
    assert not wrong_or_failed(agent, data)
    assert {f"{image_id}.raw" for image_id in data} <= set(os.listdir(agent.mount_point / "images"))
    assert len(agent.status()["images"]) == IMAGES
    assert len(os.listdir(f"/proc/{worker}/fd")) < DESCRIPTORS
    assert agent.worker_pid() == worker


@pytest.mark.nightly
@pytest.mark.timed
@pytest.mark.parametrize("count", MANY_IMAGES)
def test_more_images_than_descriptors_are_listed_and_read(images, start, count):
    data = add_images(images, count)
    agent = start(life_s=LIFE_S)
    worker = limit_descriptors(agent, MANY_DESCRIPTORS)
    os.setpriority(os.PRIO_PROCESS, worker, runs.PRIORITY)  # its turns are to be its own work
    began_s = time.monotonic()
    assert not wrong_or_failed(agent, data)
    read_s = time.monotonic()
    listed = os.listdir(agent.mount_point / "images")
    listed_s = time.monotonic()
    print(f"read: {(read_s - began_s) / count * 1e3:.1f} ms an image")
    print(f"listed: {(listed_s - read_s) / count * 1e3:.2f} ms an image")
    status = agent.status()
    print(f"turns of the event loop: {status['event_loop']}")
    assert sorted(listed) == sorted(f"{image_id}.raw" for image_id in data)
    assert len(status["images"]) == count
    assert status["event_loop"]["p99_s"] <= LONG_TURN_S
    assert len(os.listdir(f"/proc/{worker}/fd")) < DESCRIPTORS
    assert agent.worker_pid() == worker
