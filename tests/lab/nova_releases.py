# SPDX-License-Identifier: Apache-2.0
"""Releases of Nova, each with the libraries of its day.

``python -m tests.lab.nova_releases [VERSION …]`` makes their virtualenvs.  pip takes the versions
that the index had when Nova's release appeared, then the release's last update.  Tests install
nothing: they skip missing virtualenvs.
"""

import pathlib
import sys
import tomllib
from typing import NamedTuple

import pytest

from tests.lab import runs
from tests.lab import tool_venv

FOLDER = runs.CHECKOUT / ".cache/nova-releases"


class Release(NamedTuple):
    """The last update of a release, and the day after its first version."""

    update: str
    libraries_of: str


RELEASES = {
    31: Release("31.3.1", "2025-04-03"),
    32: Release("32.2.1", "2025-10-02"),
    33: Release("33.0.2", "2026-04-02"),
}
"""By Nova's major version; the lab's own services are Nova 34."""


def venv(version: int) -> tool_venv.ToolVenv:
    """Return a release's virtualenv, with what acstor needs there."""
    release = RELEASES[version]
    dated = (f"--uploaded-prior-to={release.libraries_of}T00:00:00Z", f"nova=={version}.0.0")
    return tool_venv.ToolVenv(
        FOLDER / str(version),
        ("pip==26.3",),  # for --uploaded-prior-to
        (
            (*dated, *_requirements()),
            ("--no-deps", f"nova=={release.update}"),
            ("--no-deps", "--editable", str(runs.CHECKOUT)),
        ),
    )


def require(version: int) -> pathlib.Path:
    """Return the Python of a release's virtualenv; skip the test if it is not installed."""
    found = venv(version)
    if not found.is_installed:
        pytest.skip(f"it is not installed: python -m tests.lab.nova_releases {version}")
    return found.python


def _requirements() -> list[str]:
    project = tomllib.loads((runs.CHECKOUT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["nova"]]


if __name__ == "__main__":
    for one in [int(word) for word in sys.argv[1:]] or RELEASES:
        venv(one).install()
