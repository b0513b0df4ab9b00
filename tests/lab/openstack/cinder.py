# SPDX-License-Identifier: Apache-2.0
"""Cinder as plain processes: API, scheduler, and cinder-volume on NFS shares.

A share is a folder of this machine, and its mount a bind mount, because the lab's kernel has no
NFS client.
"""

import functools
import hashlib
import pathlib
import shutil
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import openstack.connection

from tests.lab import runs
from tests.lab.openstack import accounts
from tests.lab.openstack import api
from tests.lab.openstack import cloud
from tests.lab.openstack import configured
from tests.lab.openstack import daemon
from tests.lab.openstack import ini
from tests.lab.openstack import installed

DATABASE = "cinder"
HOST = "volumes"
STOCK_DRIVER = "cinder.volume.drivers.nfs.NfsDriver"
_USER = "cinder"


class Backend:
    """A backend of cinder-volume on one share.

    :param driver: class path of the driver
    :param options: options of its group that differ from the lab's
    """

    def __init__(
        self, name: str, folder: pathlib.Path, driver: str = STOCK_DRIVER, **options: object
    ) -> None:
        self.name, self._driver, self._options = name, driver, options
        self.folder = folder / "cinder" / name  #: the share
        self.export = f"{daemon.LOOPBACK}:{self.folder}"
        self._base = folder / "cinder" / "mnt"

    @property
    def mount_point(self) -> pathlib.Path:
        """The mount point of the share in cinder-volume."""
        return self._base / hashlib.md5(self.export.encode(), usedforsecurity=False).hexdigest()

    def section(self) -> dict[str, object]:
        """Return the options of its group."""
        return {
            "volume_driver": self._driver,
            "volume_backend_name": self.name,
            "nas_host": daemon.LOOPBACK,
            "nas_share_path": self.folder,
            "nfs_mount_point_base": self._base,
            "nfs_snapshot_support": True,
            "nas_secure_file_operations": False,
            "nas_secure_file_permissions": False,
            **self._options,
        }

    def mount(self) -> None:
        """Create the share, and mount it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.mount_point.mkdir(parents=True, exist_ok=True)
        if not runs.mounts_beneath(self.mount_point):
            runs.tool(["mount", "--bind", self.folder, self.mount_point])

    def unmount(self) -> None:
        """Unmount the share; its volumes stay."""
        for mounted in runs.mounts_beneath(self.mount_point):
            runs.tool(["umount", mounted])


def _sections(lab: cloud.Cloud, folder: pathlib.Path, url: str) -> dict[str, dict[str, object]]:
    helper = f"{installed.BIN}/privsep-helper --config-file {folder}/etc/cinder-volume/cinder.conf"
    signs_in = api.credentials(lab.keystone.auth_url, _USER)
    return {
        "DEFAULT": {
            "transport_url": lab.rabbitmq.url,
            "state_path": folder / "cinder",
            "my_ip": daemon.LOOPBACK,
            "host": HOST,
            "glance_api_servers": lab.glance.url,
            "image_conversion_dir": folder / "cinder" / "conversion",
            "report_interval": 3,
            "periodic_interval": 5,
            "osapi_volume_workers": 1,
            "public_endpoint": url,
            "debug": True,
        },
        "database": {"connection": lab.mariadb.url(DATABASE)},
        "keystone_authtoken": api.token_check(lab.keystone.auth_url, _USER),
        "service_user": {"send_service_user_token": True, **signs_in},
        "nova": {**signs_in, "region_name": api.REGION},
        "glance": {**signs_in, "region_name": api.REGION},
        "oslo_concurrency": {"lock_path": folder / "cinder" / "locks"},
        "coordination": {"backend_url": f"file://{folder}/cinder/coordination"},
        "cinder_sys_admin": {"helper_command": helper},
        "privsep_osbrick": {"helper_command": helper},
    }


class CinderApi(api.Api):
    """The API of Cinder."""

    module = "cinder.wsgi.api"
    conf_name = "cinder.conf"

    def __init__(self, lab: cloud.Cloud, folder: pathlib.Path) -> None:
        super().__init__("cinder-api", folder)
        self._lab = lab
        self.more_arguments = ("--pyargv", f"--config-file {self.conf_file}")

    def sections(self) -> ini.Sections:
        """Return its configuration."""
        paste = {"api_paste_config": installed.VENV / "etc/cinder/api-paste.ini"}
        filters = {
            "resource_query_filters_file": installed.VENV / "etc/cinder/resource_filters.json"
        }
        own = {"DEFAULT": {"auth_strategy": "keystone", **paste, **filters}}
        return ini.merged(_sections(self._lab, self.folder, self.url), own)

    def environment(self) -> Mapping[str, str]:
        """Return no variables: its command line has the file."""
        return {}


class Control(configured.Configured):
    """The scheduler, or cinder-volume with its backends."""

    conf_name = "cinder.conf"

    def __init__(
        self, name: str, lab: cloud.Cloud, folder: pathlib.Path, backends: Sequence[Backend] = ()
    ) -> None:
        super().__init__(name, folder)
        self._lab, self._backends = lab, backends

    def configure(self) -> None:
        """Write its configuration; mount its shares."""
        super().configure()
        shutil.copytree(installed.VENV / "etc/cinder", self.conf_folder, dirs_exist_ok=True)
        for backend in self._backends:
            backend.mount()

    def sections(self) -> ini.Sections:
        """Return its configuration."""
        named = ",".join(backend.name for backend in self._backends)
        own = {"DEFAULT": {"enabled_backends": named}} if named else {}
        groups = {backend.name: backend.section() for backend in self._backends}
        return ini.merged(_sections(self._lab, self.folder, ""), own, groups)

    def environment(self) -> Mapping[str, str]:
        """Return a PATH with a ``mount.nfs``, which the driver looks for."""
        tools = self.folder / "cinder" / "tools"
        tools.mkdir(parents=True, exist_ok=True)
        (tools / "mount.nfs").write_text("#!/bin/sh\nexit 1\n")
        (tools / "mount.nfs").chmod(0o755)
        return {"PATH": f"{tools}:{installed.BIN}:/usr/sbin:/usr/bin:/sbin:/bin"}

    def argv(self) -> Sequence[str | pathlib.Path]:
        """Return the service's command line."""
        return [installed.BIN / self.name, "--config-file", self.conf_file]


class Cinder:
    """The services of Cinder in a cloud."""

    def __init__(self, lab: cloud.Cloud, folder: pathlib.Path, backends: Sequence[Backend]) -> None:
        self._lab, self.folder, self.backends = lab, folder, backends
        self.api = CinderApi(lab, folder)
        self.scheduler = Control("cinder-scheduler", lab, folder)
        self.volume = Control("cinder-volume", lab, folder, backends)

    def services(self) -> list[daemon.Daemon]:
        """Return the services in start order."""
        return [self.api, self.scheduler, self.volume]

    @functools.cached_property
    def client(self) -> Any:
        """The SDK's volume client, as administrator."""
        session = self._lab.session()  # made after the service is in the catalog
        made = openstack.connection.Connection(session=session, region_name=api.REGION)
        return made.block_storage

    def start(self) -> None:
        """Create the database and the account, start the services, create volume types.

        :raises errors.Unusable: a service does not start; has the end of its log
        """
        self._prepare()
        cloud.start(self.services())
        cloud.wait_ready(self.services())
        runs.wait_for(self._has_backends, daemon.READY_DEADLINE_S, HOST, self.volume.log)
        types = {found.name for found in self.client.types()}
        for backend in self.backends:
            if backend.name not in types:
                chosen = {"volume_backend_name": backend.name}
                self.client.create_type(name=backend.name, extra_specs=chosen)

    def _prepare(self) -> None:
        identity = self._lab.connect().identity
        if identity.find_user(_USER) is None:
            project = identity.find_project("service", ignore_missing=False)
            user = identity.create_user(
                name=_USER,
                password=api.PASSWORD,
                domain_id="default",
                default_project_id=project.id,
            )
            for name in ("admin", "service"):
                role = identity.find_role(name, ignore_missing=False)
                identity.assign_project_role_to_user(project, user, role)
        accounts.name_service(identity, "block-storage", "cinder", f"{self.api.url}/v3")
        known = {row[0] for row in self._lab.mariadb.execute("SHOW DATABASES")}
        if DATABASE not in known:
            self._lab.mariadb.new_database(DATABASE)
            self.api.configure()
            runs.tool(
                [installed.BIN / "cinder-manage", "--config-file", self.api.conf_file, "db", "sync"]
            )

    def _has_backends(self) -> bool:
        up = {
            service.host
            for service in self.client.services()
            if service.binary == "cinder-volume" and service.state == "up"
        }
        return {f"{HOST}@{backend.name}" for backend in self.backends} <= up

    def stop(self) -> None:
        """Stop the services and unmount the shares."""
        for service in self.services()[::-1]:
            service.stop()
        for backend in self.backends:
            backend.unmount()
