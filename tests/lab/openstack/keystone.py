# SPDX-License-Identifier: Apache-2.0
"""Keystone as a plain process.

Its keys are beneath the state folder.  Password hashing uses the lowest cost, since each token
request needs it.
"""

import pathlib

from tests.lab.openstack import api
from tests.lab.openstack import ini
from tests.lab.openstack import installed
from tests.lab.openstack import mariadb


class Keystone(api.Api):
    """The identity service."""

    module = "keystone.wsgi.api"
    conf_name = "keystone.conf"
    folder_variable = "OS_KEYSTONE_CONFIG_DIR"

    def __init__(self, folder: pathlib.Path, database: mariadb.MariaDB) -> None:
        super().__init__("keystone", folder)
        self._database = database
        self.keys = folder / "keystone"

    @property
    def auth_url(self) -> str:
        """The authentication URL."""
        return f"{self.url}/v3"

    def sections(self) -> ini.Sections:
        """Return its configuration."""
        tokens = {"key_repository": self.keys / "tokens"}
        return {
            "database": {"connection": self._database.url("keystone")},
            "identity": {"password_hash_rounds": 4},
            "token": {"provider": "fernet", "expiration": 86400},
            "fernet_tokens": tokens,
            "fernet_receipts": tokens,
            "credential": {"key_repository": self.keys / "credentials"},
            "cache": {"enabled": True, "backend": "dogpile.cache.memory"},
        }

    def commands(self) -> list[list[str | pathlib.Path]]:
        """Return the commands that initialize the database and make the keys."""
        for keys in ("tokens", "credentials"):
            (self.keys / keys).mkdir(parents=True, exist_ok=True, mode=0o700)
        manage = [installed.BIN / "keystone-manage", "--config-file", self.conf_file]
        owner = ["--keystone-user", "root", "--keystone-group", "root"]
        urls = [
            word
            for door in ("public", "internal", "admin")
            for word in (f"--bootstrap-{door}-url", self.auth_url)
        ]
        return [
            [*manage, "db_sync"],
            [*manage, "fernet_setup", *owner],
            [*manage, "credential_setup", *owner],
            [
                *(*manage, "bootstrap", "--bootstrap-password", api.PASSWORD),
                *("--bootstrap-region-id", api.REGION, *urls),
            ],
        ]
