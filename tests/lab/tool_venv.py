# SPDX-License-Identifier: Apache-2.0
"""A virtualenv for tools from a package index, apart from that of the tests."""

import pathlib
import sys
from typing import NamedTuple

from tests.lab import runs


class ToolVenv(NamedTuple):
    """The virtualenv and its packages, each with its version.

    ``later`` has the arguments of pip's later calls, for packages with other rules.
    """

    folder: pathlib.Path
    wanted: tuple[str, ...]
    later: tuple[tuple[str, ...], ...] = ()

    @property
    def python(self) -> pathlib.Path:
        """Its Python."""
        return self.folder / "bin/python"

    @property
    def is_installed(self) -> bool:
        """Whether the wanted versions are installed."""
        return self._stamp.is_file() and self._stamp.read_text() == self._key

    def install(self) -> None:
        """Make the virtualenv, anew if other versions are wanted.

        :raises errors.Unusable: a package cannot be installed
        """
        if not self.is_installed:
            runs.tool([sys.executable, "-m", "venv", "--clear", self.folder])
            for arguments in (self.wanted, *self.later):
                runs.tool([self.folder / "bin/pip", "install", "--quiet", *arguments])
            self._stamp.write_text(self._key)

    @property
    def _stamp(self) -> pathlib.Path:
        return self.folder / ".installed"

    @property
    def _key(self) -> str:
        return "\n".join((*self.wanted, *(" ".join(arguments) for arguments in self.later)))
