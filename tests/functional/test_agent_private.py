# SPDX-License-Identifier: Apache-2.0
"""Chunks of images that not everybody may read: on which hosts they come to lie, and what it costs.

Six agents on one ring; instances of some of them use the image.
"""

import os

import pytest

from acstor_common.image import deduplication
from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import hosts
from tests.lab import local

pytestmark = hosts.needs_fuse

MIB = geometry.MIB
CHUNK = geometry.DEFAULT_CHUNK_BYTES
DATA = local.random_bytes(12 * MIB)
KEY = ids.ScopeKey(os.urandom(ids.SCOPE_KEY_BYTES))
NAMES = ("h1", "h2", "h3", "h4", "h5", "h6")
SLACK = 1.1
"""A hedge on a slow machine may read a chunk twice."""


def read_on(folder, images, users, naming, **options):
    """Read an image on some hosts, one after the other; return what all hosts say after it."""
    image_id = images.add(DATA, naming=naming)
    with hosts.cloud(folder, images, NAMES, **options) as cloud:
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
    ("naming", "is_for_others", "is_elsewhere"),
    [
        (deduplication.Naming(KEY), True, True),
        (deduplication.Naming(KEY), False, False),
        (deduplication.PLAIN, False, True),
    ],
    ids=["private", "private and not for others", "public"],
)
def test_private_images_stay_with_hosts_that_use_them_where_that_is_wanted(
    tmp_path, images, naming, is_for_others, is_elsewhere
):
    users, others = NAMES[:3], NAMES[3:]
    options = {"cache_private_chunks_for_peers": is_for_others}
    statuses = read_on(tmp_path, images, users, naming, **options)
    read, kept = source_bytes(statuses), kept_bytes(statuses, *others)
    vain = sum(status["exchange"]["failovers"] for status in statuses.values())
    print(f"{len(users)} of {len(NAMES)} hosts read {len(DATA)} bytes: {read} from the source,")
    print(f"{kept} kept by the others, asked {vain} times in vain")
    assert (kept > 0) is is_elsewhere
    assert not any(status["refused"]["gets"] for status in statuses.values())
    assert len(DATA) <= read <= (SLACK if is_elsewhere else len(users)) * len(DATA)
