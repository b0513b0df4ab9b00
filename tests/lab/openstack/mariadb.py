# SPDX-License-Identifier: Apache-2.0
"""MariaDB of the distribution as a plain process with a data folder of its own.

The rule: it listens on the loopback only and asks nobody for a password; what is in it lives as
long as its folder.
"""

import pathlib
from collections.abc import Sequence
from typing import Any

import pymysql

from tests.lab import runs
from tests.lab.openstack import daemon

_FAST = (  # what it holds need not survive a power failure
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-flush-method=nosync",
    "--skip-innodb-doublewrite",
    "--sync-binlog=0",
    "--innodb-buffer-pool-size=128M",
    "--innodb-log-file-size=8M",
    "--innodb-fast-shutdown=2",
)


class MariaDB(daemon.Daemon):
    """The database server; :meth:`url` is what ``connection`` of oslo.db wants."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__("mariadb", folder)
        self.port = daemon.port_of(folder, "mariadb")
        self.data = folder / "mariadb"

    def argv(self) -> Sequence[str | pathlib.Path]:
        """Return the server in the foreground."""
        return [
            "/usr/sbin/mariadbd",
            "--no-defaults",
            "--user=root",
            f"--datadir={self.data}",
            "--socket=own.sock",
            "--pid-file=own.pid",
            f"--bind-address={daemon.LOOPBACK}",
            f"--port={self.port}",
            "--skip-grant-tables",
            "--skip-name-resolve",
            "--max-connections=400",
            "--character-set-server=utf8mb3",
            "--performance-schema=OFF",
            *_FAST,
        ]

    def configure(self) -> None:
        """Make the system's tables if there are none yet."""
        if (self.data / "mysql").is_dir():
            return
        runs.tool(
            [
                "mariadb-install-db",
                "--no-defaults",
                "--user=root",
                f"--datadir={self.data}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
            ]
        )

    def is_ready(self) -> bool:
        """Say whether it answers a query."""
        try:
            self.execute("SELECT 1")
        except pymysql.err.OperationalError:
            return False
        return True

    def execute(self, *statements: str, database: str | None = None) -> list[tuple[Any, ...]]:
        """Run statements in one transaction and return the rows of the last."""
        link = pymysql.connect(
            host=daemon.LOOPBACK, port=self.port, user="root", database=database, connect_timeout=5
        )
        with link, link.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            rows = list(cursor.fetchall())
            link.commit()
        return rows

    def url(self, database: str) -> str:
        """Return where oslo.db finds ``database``."""
        return f"mysql+pymysql://root@{daemon.LOOPBACK}:{self.port}/{database}"

    def new_database(self, name: str) -> str:
        """Make an empty database, in place of one of that name, and return its URL."""
        self.execute(
            f"DROP DATABASE IF EXISTS `{name}`",
            f"CREATE DATABASE `{name}` CHARACTER SET utf8mb3",
        )
        return self.url(name)
