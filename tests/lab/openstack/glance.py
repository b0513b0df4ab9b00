# SPDX-License-Identifier: Apache-2.0
"""Glance as a plain process with a file store, import methods and notifications.

All images are below the state folder.
"""

import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

from tests.lab.openstack import api
from tests.lab.openstack import ini
from tests.lab.openstack import installed
from tests.lab.openstack import keystone
from tests.lab.openstack import mariadb
from tests.lab.openstack import rabbitmq


def is_imported(record: Mapping[str, Any]) -> bool:
    """Return whether an import is over, by the image's record.

    Glance sets an image active before the import's task has ended.  A deletion in between may fail
    with 500: the task deletes its own properties at the same time, which Glance's database layer
    does not handle.
    """
    return record["status"] == "active" and "os_glance_import_task" not in record


class Glance(api.Api):
    """The image service."""

    module = "glance.wsgi.api"
    conf_name = "glance-api.conf"
    folder_variable = "OS_GLANCE_CONFIG_DIR"
    # nova-compute's uploads are chunked with pauses; uWSGI's default timeout is 4 s.
    more_arguments = (
        *("--chunked-input-timeout", "600", "--chunked-input-limit", "67108864"),
        *("--socket-timeout", "600"),
    )

    def __init__(
        self,
        folder: pathlib.Path,
        database: mariadb.MariaDB,
        broker: rabbitmq.RabbitMQ,
        identity: keystone.Keystone,
    ) -> None:
        super().__init__("glance", folder)
        self._database, self._broker, self._identity = database, broker, identity
        self.data = folder / "glance"
        self.images = self.data / "images"  #: the file store: one file per image, by its id

    def configure(self) -> None:
        """Write its configuration and create its folders."""
        for name in ("images", "staging", "tasks", "locks"):
            (self.data / name).mkdir(parents=True, exist_ok=True)
        super().configure()
        shutil.copy(installed.VENV / "etc/glance/glance-api-paste.ini", self.conf_folder)

    def sections(self) -> ini.Sections:
        """Return its configuration."""
        return {
            "DEFAULT": {
                "enabled_backends": "fs:file",
                "enabled_import_methods": "[glance-direct,web-download,copy-image]",
                "transport_url": self._broker.url,
                "worker_self_reference_url": self.url,
                "disabled_notifications": "image.send",
            },
            "database": {"connection": self._database.url("glance")},
            "glance_store": {"default_backend": "fs"},
            "fs": {"filesystem_store_datadir": self.images},
            "os_glance_staging_store": {"filesystem_store_datadir": self.data / "staging"},
            "os_glance_tasks_store": {"filesystem_store_datadir": self.data / "tasks"},
            "oslo_concurrency": {"lock_path": self.data / "locks"},  # required for new locations
            "oslo_messaging_notifications": {"driver": "messagingv2"},
            "paste_deploy": {
                "flavor": "keystone",
                "config_file": self.conf_folder / "glance-api-paste.ini",
            },
            "keystone_authtoken": api.token_check(self._identity.auth_url, "glance"),
        }

    def commands(self) -> list[list[str | pathlib.Path]]:
        """Return the commands that initialize the database."""
        return [[installed.BIN / "glance-manage", "--config-file", self.conf_file, "db_sync"]]
