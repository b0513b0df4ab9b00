# SPDX-License-Identifier: Apache-2.0
"""Builds Rust programs with cargo, which apt installs where it is missing."""

import pathlib
import shutil
import subprocess
from collections.abc import Sequence

from tests.outside import apt

_DEADLINE_S = 1200.0


def run(words: Sequence[str | pathlib.Path], folder: pathlib.Path | None = None) -> None:
    """Run cargo in a folder.

    :raises subprocess.SubprocessError: it failed, or did not end in 20 minutes
    """
    if not shutil.which("cargo"):
        apt.install("cargo")
    subprocess.run(["cargo", *words], cwd=folder, check=True, timeout=_DEADLINE_S)
