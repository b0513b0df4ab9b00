# SPDX-License-Identifier: Apache-2.0
"""Tests of acstor's qcow2 files with the readers imago and qcow2-rs besides QEMU."""

import collections
import os
import pathlib
import subprocess
import sys

from tests.fakes import qcow2_readers
from tests.outside import cargo
from tests.outside import qemu_source

SOURCE = pathlib.Path(__file__).parent / "readers"
TESTS = {
    "flattened snapshots": ("tests/functional/test_changes.py",),
    "snapshots of a gateway": ("tests/functional/test_glance_compositions.py",),
    "restored checkpoints": ("tests/functional/test_agent_checkpoint.py",),
    "overlays": ("tests/unit/common/test_qcow2_writer.py",),
    "hole maps": ("tests/unit/nova/test_hole_map.py",),
}
_TESTS_S = 1800


def build() -> pathlib.Path:
    """Build the readers with the pinned crates; return their folder."""
    target = qemu_source.CACHE / "readers"
    cargo.run(["build", "--locked", "--quiet", "--target-dir", target], SOURCE)
    return target / "debug"


def run_tests() -> dict[str, collections.Counter[str]]:
    """Run the tests; return the numbers of files by kind and reader.

    :raises RuntimeError: a test failed
    """
    folder, counts = build(), {}
    for kind, paths in TESTS.items():
        read = folder / qcow2_readers.READ
        read.write_text("")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths],
            cwd=qemu_source.CHECKOUT,
            env={**os.environ, qcow2_readers.FOLDER: str(folder)},
            timeout=_TESTS_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"tests of {kind} fail")
        counts[kind] = collections.Counter(read.read_text().split())
    return counts
