# SPDX-License-Identifier: Apache-2.0
"""Verdicts of the crash tests: a slow machine is not damage."""

import pathlib
import struct
import subprocess

import pytest

from tests.fakes import qcow2_corpus
from tests.outside import bounded
from tests.outside import crash_host
from tests.outside import crash_passes

pytestmark = pytest.mark.skipif(
    not qcow2_corpus.HAS_TOOLS, reason="qemu-img and qemu-io are not installed"
)
CLUSTER = 1 << 16
L1_TABLE_AT = 40  # in the header
ALLOCATED = 1 << 63


@pytest.fixture
def overlay(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a qcow2 file with one allocated cluster."""
    file = tmp_path / "overlay"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", file, "1M"], check=True)
    subprocess.run(["qemu-io", "-c", "write 0 64k", file], check=True, capture_output=True)
    return file


def set_first_cluster(file: pathlib.Path, entry: int) -> None:
    with file.open("r+b") as changed:
        changed.seek(L1_TABLE_AT)
        (l1_at,) = struct.unpack(">Q", changed.read(8))
        changed.seek(l1_at)
        (l2_at,) = struct.unpack(">Q", changed.read(8))
        changed.seek(l2_at & ~ALLOCATED)
        changed.write(struct.pack(">Q", entry))


def test_leaked_cluster_is_not_damage(overlay: pathlib.Path) -> None:
    set_first_cluster(overlay, 0)
    assert bounded.check(overlay).status == 3
    assert bounded.is_sound(overlay)


def test_cluster_without_a_reference_count_is_damage(overlay: pathlib.Path) -> None:
    set_first_cluster(overlay, ALLOCATED | CLUSTER * 12)
    assert bounded.check(overlay).status == bounded.DAMAGED
    assert not bounded.is_sound(overlay)


def test_check_that_does_not_end_in_time_is_not_damage(overlay: pathlib.Path) -> None:
    assert bounded.check(overlay, deadline_s=0.0) == (-1, bounded.NO_END)


@pytest.mark.parametrize(
    "failure", [TimeoutError("no end in time"), RuntimeError("damage in the overlay")]
)
def test_part_ends_with_the_reason_of_a_failed_pass(
    tmp_path: pathlib.Path, failure: Exception
) -> None:
    def work(now: crash_passes.Pass) -> crash_passes.Work:
        if now.number:
            raise failure
        return crash_passes.Work(operations=3)

    goal = crash_passes.Goal(operations=9, kills=0, seed=1, longest_s=60.0)
    found = crash_passes.run(crash_host.CrashHost(tmp_path, 1), work, goal, ())
    assert found.operations == 3
    assert found.error == f"pass 1, no kill: {failure}"
