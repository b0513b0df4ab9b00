# SPDX-License-Identifier: Apache-2.0
"""A service of OpenStack with a configuration file that a test may change.

The rule: a service's own options are written first, those that a test adds after them, so a test
may change any of them (:meth:`Configured.changed`).
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
        self.changes: ini.Sections = {}  #: what its next start adds to its own options

    @property
    def conf_file(self) -> pathlib.Path:
        """The file that says how it is configured."""
        return self.conf_folder / self.conf_name

    def sections(self) -> ini.Sections:
        """Return its configuration without changes."""
        raise NotImplementedError

    def configure(self) -> None:
        """Write its configuration."""
        ini.write(self.conf_file, self.sections(), self.changes)

    @contextlib.contextmanager
    def changed(self, changes: ini.Sections) -> Iterator[None]:
        """Let it run with these options added to its own, until the block is over.

        Inside of another such block these take the place of that one's, until this one is over.

        :raises errors.Unusable: it does not start with them; shows the end of its log
        """
        before, self.changes = self.changes, changes
        try:
            self.restart()
            yield
        finally:
            self.changes = before
            self.restart()
