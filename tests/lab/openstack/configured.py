# SPDX-License-Identifier: Apache-2.0
"""An OpenStack service with a configuration file that tests can change.

A service's own options come first, a test's options after them, so a test can override any
(:meth:`Configured.changed`).
"""

import contextlib
import pathlib
from collections.abc import Iterator

from tests.lab.openstack import daemon
from tests.lab.openstack import ini


class Configured(daemon.Daemon):
    """A daemon with one configuration file, in a folder of its own."""

    conf_name = ""

    def __init__(self, name: str, folder: pathlib.Path) -> None:
        super().__init__(name, folder)
        self.conf_folder = folder / "etc" / name
        self.changes: ini.Sections = {}  #: options that its next start adds to its own

    @property
    def conf_file(self) -> pathlib.Path:
        """Its configuration file."""
        return self.conf_folder / self.conf_name

    def sections(self) -> ini.Sections:
        """Return its configuration without changes."""
        raise NotImplementedError

    def configure(self) -> None:
        """Write its configuration."""
        ini.write(self.conf_file, self.sections(), self.changes)

    @contextlib.contextmanager
    def changed(self, changes: ini.Sections) -> Iterator[None]:
        """Run it with these options added to its own, for the block.

        A nested block's options replace the outer ones until its end.

        :raises errors.Unusable: it does not start with them; has the end of its log
        """
        before, self.changes = self.changes, changes
        try:
            self.restart()
            yield
        finally:
            self.changes = before
            self.restart()
