# SPDX-License-Identifier: Apache-2.0
"""Third-party readers of acstor's qcow2 files, besides QEMU.

``tools/outside-tests.sh readers`` builds the programs, passes their folder in the environment,
and counts their reads in its file :data:`READ`.  Without that folder, QEMU is the only reader.
"""

import os
import pathlib
import subprocess

FOLDER = "ACSTOR_TEST_QCOW2_READERS"
READ = "read"
DATA_FILE = 1 << 2  # a bit of incompatible_features
FEATURES = {"imago": DATA_FILE, "qcow2_rs": 0}
"""The incompatible features that each reader supports."""
_AT_FEATURES = 72
_DEADLINE_S = 60


def check(image: pathlib.Path, disk: bytes, data_file: pathlib.Path | None = None) -> None:
    """Check that each reader that supports a file's features reads these bytes."""
    if FOLDER not in os.environ:
        return
    folder = pathlib.Path(os.environ[FOLDER])
    with image.open("rb") as file:
        features = int.from_bytes(file.read(_AT_FEATURES + 8)[_AT_FEATURES:])
    for name, known in FEATURES.items():
        if features & ~known:
            continue
        words = [folder / name, image, *([data_file] if data_file else [])]
        done = subprocess.run(words, capture_output=True, timeout=_DEADLINE_S, check=False)
        assert done.returncode == 0, f"{name}: {done.stderr.decode(errors='replace')}"
        assert len(done.stdout) == len(disk), f"{name} reads {len(done.stdout)} bytes"
        assert done.stdout == disk, f"{name} reads other bytes"
        with (folder / READ).open("a") as read:
            read.write(f"{name}\n")
