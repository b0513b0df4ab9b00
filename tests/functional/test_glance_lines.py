# SPDX-License-Identifier: Apache-2.0
"""Chains of images in a real Glance on XFS: their properties and disk usage.

The listener is a process of its own.

"""

import itertools
import random
import shutil

import pytest

from tests.fakes import file_systems
from tests.lab import runs
from tests.lab.openstack import uploads

MIB = 1 << 20
SIZE = 16 * MIB

pytestmark = pytest.mark.skipif(bool(file_systems.why_not()), reason=file_systems.why_not())


@pytest.fixture
def store(glance, tmp_path):
    """Let Glance's file store be an XFS while the test runs; its content stays."""
    folder = glance.lab.glance.images
    with file_systems.mounted(tmp_path, 512 * MIB) as xfs:
        shutil.copytree(folder, xfs, dirs_exist_ok=True)
        with file_systems.shown_at(xfs, folder):
            yield xfs
            glance.clean_up()
        shutil.copytree(xfs, folder, dirs_exist_ok=True)


def wait_property(glance, listener, image_id, name):
    """Wait until an image has a property, and return it."""
    runs.wait_for(lambda: name in glance.record(image_id), uploads.DEADLINE_S, name, listener.log)
    return glance.record(image_id)[name]


def line_of(count):
    """Return images that each have one MiB of their own, and the rest of the former."""
    disk = bytearray(random.Random(5).randbytes(SIZE))
    yield bytes(disk)
    for number in range(1, count):
        disk[number * MIB : (number + 1) * MIB] = random.Random(number).randbytes(MIB)
        yield bytes(disk)


def test_chain_of_images_shares_blocks_and_survives_deletions(glance, listen, store):
    listener = listen(file_store_dirs=glance.lab.glance.images)
    used, line, contents = file_systems.used_bytes(store), [], list(line_of(3))
    for data in contents:
        said = {"base_image_ref": line[-1]} if line else {}
        line.append(glance.upload(data, **said))
        glance.wait_state(line[-1])
        if said:
            shared = wait_property(glance, listener, line[-1], "acstor_shared_bytes")
            assert int(shared) == SIZE - MIB
    for base, image_id in itertools.pairwise(line):
        record = glance.record(image_id)
        assert (record["acstor_base"], record["acstor_own_bytes"]) == (base, str(MIB))
    assert file_systems.used_bytes(store) - used < SIZE + 4 * MIB
    glance.delete(line[1])
    for image_id, data in ((line[0], contents[0]), (line[2], contents[2])):
        assert glance.tenant.get(f"/images/{image_id}/file").content == data
    counted = uploads.metric(listener, 'acstor_glance_compared_images_total{result="shared"}')
    assert counted == 2


def test_store_without_reflinks_is_logged_once_and_images_become_ready(glance, listen):
    listener = listen(file_store_dirs=glance.lab.glance.images)
    first, second, third = line_of(3)
    base = glance.upload(first)
    glance.wait_state(base)
    for data in (second, third):
        image_id = glance.upload(data, base_image_ref=base)
        glance.wait_state(image_id)
        wait_property(glance, listener, image_id, "acstor_own_bytes")
    name = 'acstor_glance_compared_images_total{result="refused"}'
    runs.wait_for(
        lambda: uploads.metric(listener, name) == 2, uploads.DEADLINE_S, name, listener.log
    )
    assert "acstor_shared_bytes" not in glance.record(image_id)
    said = [
        line
        for line in listener.log().splitlines()
        if "its file system does not support it" in line
    ]
    assert len(said) == 1, said
