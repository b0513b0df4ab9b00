# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL of the distribution as a plain process with a data folder of its own.

It listens on the loopback only and asks nobody for a password.  It refuses to run as root.
"""

import pathlib
import shutil
import signal
from collections.abc import Sequence
from typing import Any

import psycopg2

from tests.lab import runs
from tests.lab.openstack import daemon

_USER = "nobody"
_AS_NOBODY = (  # who can go through folders of root
    "setpriv",
    f"--reuid={_USER}",
    "--regid=nogroup",
    "--clear-groups",
    "--inh-caps=+dac_override",
    "--ambient-caps=+dac_override",
)
_FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "shared_buffers=32MB")


def folder_of_programs() -> pathlib.Path | None:
    """Return where the distribution has the server, the newest one; None if it has none."""
    found = pathlib.Path("/usr/lib/postgresql").glob("*/bin/initdb")
    return max((path.parent for path in found), key=lambda path: int(path.parts[-2]), default=None)


class PostgreSQL(daemon.Daemon):
    """The database server; :meth:`new_database` returns what ``connection`` of oslo.db wants."""

    stop_signal = signal.SIGINT  # waits for no client

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__("postgresql", folder)
        self.port = daemon.port_of(folder, "postgresql")
        self.data = folder / "postgresql"
        self._programs = folder_of_programs() or pathlib.Path("/nonexistent")

    def argv(self) -> Sequence[str | pathlib.Path]:
        """Return the server in the foreground."""
        options = [part for one in _FAST for part in ("-c", one)]
        place = ["-h", daemon.LOOPBACK, "-p", str(self.port), "-k", ""]
        return [*_AS_NOBODY, self._programs / "postgres", "-D", self.data, *place, *options]

    def configure(self) -> None:
        """Make the system's tables if there are none yet."""
        if (self.data / "base").is_dir():
            return
        self.data.mkdir(mode=0o700)
        shutil.chown(self.data, _USER)
        make = [self._programs / "initdb", "-D", self.data, "-A", "trust", "-U", "acstor"]
        runs.tool([*_AS_NOBODY, *make, "--no-sync", "--locale=C.UTF-8"])

    def is_ready(self) -> bool:
        """Say whether it takes connections."""
        try:
            self._connected().close()
        except psycopg2.OperationalError:
            return False
        return True

    def _connected(self) -> Any:
        return psycopg2.connect(
            dbname="postgres", host=daemon.LOOPBACK, port=self.port, user="acstor"
        )

    def new_database(self, name: str, driver: str = "psycopg2", port: int = 0) -> str:
        """Make an empty database, in place of one of that name, and return its URL.

        :param port: where clients connect to, if not to the server itself
        """
        link = self._connected()
        try:
            link.autocommit = True
            with link.cursor() as cursor:
                cursor.execute(f'DROP DATABASE IF EXISTS "{name}"')
                cursor.execute(f'CREATE DATABASE "{name}"')
        finally:
            link.close()
        return f"postgresql+{driver}://acstor@{daemon.LOOPBACK}:{port or self.port}/{name}"
