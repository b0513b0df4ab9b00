# SPDX-License-Identifier: Apache-2.0
"""Many images on one host: what stays open of each is bounded, and all are listed and read."""

import os
import resource

from tests.fakes import hosts
from tests.lab import local

pytestmark = hosts.needs_fuse

IMAGES = 300
DESCRIPTORS = 192
"""The agent may open so many: 64 of them are files of the source, which are used again."""


def test_three_hundred_images_are_listed_and_read_with_few_descriptors(images, start):
    data = {images.add(local.random_bytes(4096, seed=n)): n for n in range(IMAGES)}
    agent = start()
    worker = agent.worker_pid()
    resource.prlimit(worker, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    for image_id, seed in data.items():
        assert agent.image_path(image_id).read_bytes() == local.random_bytes(4096, seed=seed)
    assert {f"{image_id}.raw" for image_id in data} <= set(os.listdir(agent.mount_point / "images"))
    assert len(agent.status()["images"]) == IMAGES
    assert len(os.listdir(f"/proc/{worker}/fd")) < DESCRIPTORS
    assert agent.worker_pid() == worker
