# SPDX-License-Identifier: Apache-2.0
"""A PATH that lacks some of this machine's programs."""

import os
import pathlib

import pytest


def hide(patch: pytest.MonkeyPatch, folder: pathlib.Path, *names: str) -> None:
    """Set PATH to a new folder with links to all programs but the named ones."""
    found: dict[str, pathlib.Path] = {}
    for place in os.get_exec_path():
        for path in pathlib.Path(place).glob("*"):
            found.setdefault(path.name, path)
    folder.mkdir()
    for name in found.keys() - set(names):
        (folder / name).symlink_to(found[name])
    patch.setenv("PATH", str(folder))
