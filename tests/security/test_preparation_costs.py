# SPDX-License-Identifier: Apache-2.0
"""A small upload that claims much work costs a listener little, and delays no other image.

The listener is a process of its own, with a fake broker and a Glance in memory.

"""

import random

import pytest

from acstor_common.model import geometry
from tests.fakes import listener_process
from tests.fakes import qcow2_bombs

MOST_CPU_S = 20.0
"""Limit of the whole process for all hostile images, its start included; measured: 6 to 8 s."""
DISK_BYTES = 2 << 40


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory):
    """Return the outcome of hostile images, and of another project's honest one beside them."""
    folder, state = tmp_path_factory.mktemp("images"), tmp_path_factory.mktemp("state")
    hostile = {
        # One cluster of 2 MiB, which takes a third of a second to decode, for a disk of 2 TiB.
        "aliased": qcow2_bombs.aliased(DISK_BYTES),
        "shared": qcow2_bombs.aliased(DISK_BYTES, stored_bytes=4096),
        "slow": qcow2_bombs.slow(256 * geometry.MIB),
        "empty": qcow2_bombs.empty(DISK_BYTES // 4),
    }
    for name, data in hostile.items():
        (folder / f"hostile.{name}.qcow2").write_bytes(data)
    (folder / "other.honest.raw").write_bytes(random.Random(1).randbytes(8 * geometry.MIB))
    return listener_process.run(folder, state, workers=2)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("aliased", "decode to more than"),
        ("shared", "decode to more than"),
        ("slow", "decode too slowly"),
    ],
)
def test_hostile_image_fails_with_the_reason_and_is_not_retried(reported, name, why):
    image = reported["images"][name]
    assert image["state"] == "failed" and why in image["message"]
    assert "not retried" in image["message"] and image["retry"] == "1 never"
    assert reported["failed"] == 3  # each once, though each reconcile sees it


def test_hostile_images_take_bounded_processor_time(reported):
    assert reported["cpu_s"] < MOST_CPU_S


def test_image_of_another_project_is_prepared_concurrently(reported):
    honest = reported["images"]["honest"]
    assert honest["state"] == "ready"
    # It came last.  A project leaves one worker to others, so it waits for one image at most.
    hostile = sorted(reported["images"][name]["s"] for name in ("aliased", "shared", "slow"))
    assert honest["s"] < hostile[1]


def test_empty_image_of_a_large_disk_takes_little_space_in_the_store(reported):
    empty = reported["images"]["empty"]
    assert empty["state"] == "ready"
    assert empty["artefact_bytes"] < 2 * geometry.MIB
