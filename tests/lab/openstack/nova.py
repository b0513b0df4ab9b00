# SPDX-License-Identifier: Apache-2.0
"""Placement and Nova as plain processes: APIs, conductor, scheduler, options.

All parts of Nova have the same options; only those with database access have the databases' URLs.
"""

import dataclasses
import pathlib
import shutil
from collections.abc import Sequence

from tests.lab.openstack import api
from tests.lab.openstack import configured
from tests.lab.openstack import daemon
from tests.lab.openstack import glance
from tests.lab.openstack import ini
from tests.lab.openstack import installed
from tests.lab.openstack import keystone
from tests.lab.openstack import mariadb
from tests.lab.openstack import rabbitmq

_PRIVILEGED = (
    "nova_sys_admin",
    "privsep_osbrick",
    "vif_plug_linux_bridge_privileged",
    "vif_plug_ovs_privileged",
)


@dataclasses.dataclass(frozen=True)
class Needs:
    """The services that Nova depends on."""

    database: mariadb.MariaDB
    broker: rabbitmq.RabbitMQ
    identity: keystone.Keystone
    images: glance.Glance


def shared_sections(folder: pathlib.Path, needs: Needs, conf_file: pathlib.Path) -> ini.Sections:
    """Return the common options of Nova; ``conf_file`` is their future file."""
    auth_url = needs.identity.auth_url
    signs_in = {**api.credentials(auth_url, "nova"), "region_name": api.REGION}
    helper = f"{installed.BIN}/privsep-helper --config-file {conf_file}"
    return {
        "DEFAULT": {
            "transport_url": needs.broker.url,
            "state_path": folder / "nova",
            "instances_path": folder / "nova" / "instances",
            "report_interval": 5,
            "periodic_fuzzy_delay": 0,  # else the scheduler detects new hosts a minute later
            "service_down_time": 600,  # a report lost by a killed broker is missing for 60 s
            "initial_cpu_allocation_ratio": 8.0,
            "reserved_host_memory_mb": 512,
            "reserved_host_disk_mb": 0,
            "heal_instance_info_cache_interval": 0,
            "vif_plugging_is_fatal": False,
            "executor_thread_pool_size": 16,  # not 64: an idle thread wakes up each second
            "graceful_shutdown_timeout": 8,  # 180 s and 160 s by default
            "manager_shutdown_timeout": 4,
        },
        "oslo_concurrency": {"lock_path": folder / "nova" / "locks"},
        "oslo_messaging_notifications": {"driver": "messagingv2"},
        "keystone_authtoken": api.token_check(auth_url, "nova"),
        "service_user": {"send_service_user_token": True, **api.credentials(auth_url, "nova")},
        "placement": signs_in,
        "neutron": signs_in,
        "glance": {"api_servers": needs.images.url},
        "vnc": {"enabled": False},
        "spice": {"enabled": False},
        "serial_console": {"enabled": False},
        **{section: {"helper_command": helper} for section in _PRIVILEGED},
    }


def _control_sections(
    folder: pathlib.Path, needs: Needs, conf_file: pathlib.Path
) -> dict[str, dict[str, object]]:
    """Return the options of Nova's parts with database access."""
    workers = {"workers": 1}
    return ini.merged(
        shared_sections(folder, needs, conf_file),
        {
            "database": {"connection": needs.database.url("nova_cell1")},
            "api_database": {"connection": needs.database.url("nova_api")},
            "conductor": workers,
            "scheduler": {"discover_hosts_in_cells_interval": 5, **workers},
        },
    )


class _NeedyApi(api.Api):
    """An API that needs a database, a message bus and Keystone."""

    name = ""

    def __init__(self, folder: pathlib.Path, needs: Needs) -> None:
        super().__init__(self.name, folder)
        self._needs = needs


class Placement(_NeedyApi):
    """The Placement service."""

    name = "placement"
    module = "placement.wsgi.api"
    conf_name = "placement.conf"
    folder_variable = "OS_PLACEMENT_CONFIG_DIR"

    def sections(self) -> ini.Sections:
        """Return its configuration."""
        return {
            "placement_database": {"connection": self._needs.database.url("placement")},
            "api": {"auth_strategy": "keystone"},
            "keystone_authtoken": api.token_check(self._needs.identity.auth_url, "placement"),
        }

    def commands(self) -> list[list[str | pathlib.Path]]:
        """Return the commands that initialize the database."""
        return [[installed.BIN / "placement-manage", "--config-file", self.conf_file, "db", "sync"]]


class NovaApi(_NeedyApi):
    """The compute API."""

    name = "nova-api"
    module = "nova.wsgi.osapi_compute"
    conf_name = "nova.conf"
    folder_variable = "OS_NOVA_CONFIG_DIR"

    def sections(self) -> ini.Sections:
        """Return its configuration."""
        return _control_sections(self.folder, self._needs, self.conf_file)

    def configure(self) -> None:
        """Write its configuration and its paste pipeline."""
        super().configure()
        shutil.copy(installed.VENV / "etc/nova/api-paste.ini", self.conf_folder)

    def commands(self) -> list[list[str | pathlib.Path]]:
        """Return the commands that initialize the databases.

        Cell mappings are templates, which each reader fills from its own configuration.
        """
        manage = [installed.BIN / "nova-manage", "--config-file", self.conf_file]
        database = "{scheme}://{username}@{hostname}:{port}/"
        broker = "{scheme}://{username}:{password}@{hostname}:{port}/"
        return [
            [*manage, "api_db", "sync"],
            [*manage, "cell_v2", "map_cell0", "--database_connection", f"{database}nova_cell0"],
            [*manage, "db", "sync"],
            [
                *(*manage, "cell_v2", "create_cell", "--name", "cell1"),
                *("--database_connection", f"{database}nova_cell1", "--transport-url", broker),
            ],
        ]


class Control(configured.Configured):
    """The conductor or the scheduler."""

    conf_name = "nova.conf"

    def __init__(self, name: str, folder: pathlib.Path, needs: Needs) -> None:
        super().__init__(name, folder)
        self._needs = needs

    def sections(self) -> ini.Sections:
        """Return its configuration."""
        return _control_sections(self.folder, self._needs, self.conf_file)

    def argv(self) -> Sequence[str | pathlib.Path]:
        """Return the service's command line."""
        return [installed.BIN / self.name, "--config-file", self.conf_file]


class Controller:
    """Nova and Placement without the compute hosts."""

    def __init__(self, folder: pathlib.Path, needs: Needs) -> None:
        self.placement = Placement(folder, needs)
        self.api = NovaApi(folder, needs)
        self.conductor = Control("nova-conductor", folder, needs)
        self.scheduler = Control("nova-scheduler", folder, needs)

    def services(self) -> list[daemon.Daemon]:
        """Return the services in start order."""
        return [self.placement, self.conductor, self.scheduler, self.api]
