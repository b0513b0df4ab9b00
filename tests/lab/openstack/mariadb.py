# SPDX-License-Identifier: Apache-2.0
"""The distribution's MariaDB as a plain process with a data folder of its own.

It listens on the loopback only, without passwords; its data live as long as its folder.
"""

import pathlib
from collections.abc import Sequence
from typing import Any

import pymysql

from tests.lab import runs
from tests.lab.openstack import daemon

_FAST = (  # its data need not survive a power failure
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-flush-method=nosync",
    "--skip-innodb-doublewrite",
    "--sync-binlog=0",
    "--innodb-buffer-pool-size=128M",
    "--innodb-log-file-size=8M",
    "--innodb-fast-shutdown=2",
)


class MariaDB(daemon.Daemon):
    """The database server; :meth:`url` is ``connection`` of oslo.db."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__("mariadb", folder)
        self.port = daemon.port_of(folder, "mariadb")
        self.data = folder / "mariadb"

    def argv(self) -> Sequence[str | pathlib.Path]:
        """Return the server's command line."""
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
            "--skip-ssl",  # MariaDB 11.4 encrypts by default
            "--max-connections=400",
            "--character-set-server=utf8mb3",
            "--performance-schema=OFF",
            *_FAST,
        ]

    def configure(self) -> None:
        """Create the system tables if they are missing."""
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
        """Return whether it answers a query."""
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
        """Return the URL of ``database`` for oslo.db."""
        return f"mysql+pymysql://root@{daemon.LOOPBACK}:{self.port}/{database}"

    def new_database(self, name: str) -> str:
        """Create an empty database, replacing one of that name; return its URL."""
        self.execute(
            f"DROP DATABASE IF EXISTS `{name}`",
            f"CREATE DATABASE `{name}` CHARACTER SET utf8mb3",
        )
        return self.url(name)
