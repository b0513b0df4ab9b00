# SPDX-License-Identifier: Apache-2.0
"""Installs the Debian packages that a part needs."""

import subprocess

_DEADLINE_S = 1200.0


def install(package: str) -> None:
    """Install a package by apt-get.

    :raises subprocess.SubprocessError: it failed, or did not end in 20 minutes
    """
    words = ["apt-get", "install", "--yes", "--no-install-recommends", package]
    subprocess.run(words, check=True, timeout=_DEADLINE_S)
