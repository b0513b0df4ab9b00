# SPDX-License-Identifier: Apache-2.0
"""A virtualenv for tools from a package index, apart from that of the tests."""

import pathlib
import sys
from typing import NamedTuple

from tests.lab import runs


class ToolVenv(NamedTuple):
    """The virtualenv and its packages, each with its version."""

    folder: pathlib.Path
    wanted: tuple[str, ...]

    @property
    def is_installed(self) -> bool:
        """Whether the wanted versions are installed."""
        return self._stamp.is_file() and self._stamp.read_text() == self._key

    def install(self) -> None:
        """Make the virtualenv or bring it up to date.

        :raises errors.Unusable: a package cannot be installed
        """
        if not self.is_installed:
            runs.tool([sys.executable, "-m", "venv", self.folder])
            runs.tool([self.folder / "bin/pip", "install", "--quiet", *self.wanted])
            self._stamp.write_text(self._key)

    @property
    def _stamp(self) -> pathlib.Path:
        return self.folder / ".installed"

    @property
    def _key(self) -> str:
        return "\n".join(self.wanted)
