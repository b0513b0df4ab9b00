# SPDX-License-Identifier: Apache-2.0
"""The distribution's PostgreSQL as a plain process with a data folder of its own.

It listens on the loopback only, without passwords.  It refuses to run as root.
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
_AS_NOBODY = (  # it needs search permission for root's folders
    "setpriv",
    f"--reuid={_USER}",
    "--regid=nogroup",
    "--clear-groups",
    "--inh-caps=+dac_override",
    "--ambient-caps=+dac_override",
)
_FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "shared_buffers=32MB")


def folder_of_programs() -> pathlib.Path | None:
    """Return the folder of the distribution's newest server, None if there is none."""
    found = pathlib.Path("/usr/lib/postgresql").glob("*/bin/initdb")
    return max((path.parent for path in found), key=lambda path: int(path.parts[-2]), default=None)


class PostgreSQL(daemon.Daemon):
    """The database server; :meth:`new_database` returns oslo.db's ``connection``."""

    stop_signal = signal.SIGINT  # a fast shutdown disconnects clients

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__("postgresql", folder)
        self.port = daemon.port_of(folder, "postgresql")
        self.data = folder / "postgresql"
        self._programs = folder_of_programs() or pathlib.Path("/nonexistent")

    def argv(self) -> Sequence[str | pathlib.Path]:
        """Return the server's command line."""
        options = [part for one in _FAST for part in ("-c", one)]
        place = ["-h", daemon.LOOPBACK, "-p", str(self.port), "-k", ""]
        return [*_AS_NOBODY, self._programs / "postgres", "-D", self.data, *place, *options]

    def configure(self) -> None:
        """Create the system tables if they are missing."""
        if (self.data / "base").is_dir():
            return
        self.data.mkdir(mode=0o700)
        shutil.chown(self.data, _USER)
        make = [self._programs / "initdb", "-D", self.data, "-A", "trust", "-U", "acstor"]
        runs.tool([*_AS_NOBODY, *make, "--no-sync", "--locale=C.UTF-8"])

    def is_ready(self) -> bool:
        """Return whether it accepts connections."""
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
        """Create an empty database, replacing one of that name; return its URL.

        :param port: for clients; None: the server's own
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
