# SPDX-License-Identifier: Apache-2.0
"""Chunks of private images: which hosts cache them, and how often the source is read.

Six agents on one ring; instances of some of them use the image.

"""

import os

import pytest

from acstor_common.image import deduplication
from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import hosts
from tests.lab import local
from tests.lab import tuned

pytestmark = hosts.needs_fuse

MIB = geometry.MIB
CHUNK = geometry.DEFAULT_CHUNK_BYTES
DATA = local.random_bytes(12 * MIB)
KEY = ids.ScopeKey(os.urandom(ids.SCOPE_KEY_BYTES))
NAMES = ("h1", "h2", "h3", "h4", "h5", "h6")
SLACK = 1.1
"""A hedge on a slow machine may read a chunk twice."""


def read_on(folder, images, users, naming):
    """Read an image on some hosts, one after the other, and return the status of all hosts."""
    image_id = images.add(DATA, naming=naming)
    patient = {"variants": hosts.BY_HOMES, "constants": {tuned.PEER_SILENCE_S: 5}}
    with hosts.cloud(folder, images, NAMES, **patient) as cloud:
        for name in users:
            assert cloud[name].image_path(image_id).read_bytes() == DATA
        for name in NAMES:
            hosts.wait_written(cloud[name])
        return cloud.statuses()


def source_bytes(statuses):
    return sum(status["exchange"]["source_bytes"] for status in statuses.values())


def kept_bytes(statuses, *names):
    return CHUNK * sum(statuses[name]["cache"]["chunks"] for name in names)


@pytest.mark.parametrize(
    "naming", [deduplication.Naming(KEY), deduplication.PLAIN], ids=["private", "public"]
)
def test_homes_cache_chunks_of_images_that_they_do_not_use(tmp_path, images, naming):
    users, others = NAMES[:3], NAMES[3:]
    statuses = read_on(tmp_path, images, users, naming)
    read, kept = source_bytes(statuses), kept_bytes(statuses, *others)
    print(f"{len(users)} of {len(NAMES)} hosts read {len(DATA)} bytes: {read} from the source,")
    print(f"{kept} kept by the others")
    assert kept > 0
    assert not any(status["refused"]["gets"] for status in statuses.values())
    assert len(DATA) <= read <= SLACK * len(DATA)
