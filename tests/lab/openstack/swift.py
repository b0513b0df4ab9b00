# SPDX-License-Identifier: Apache-2.0
"""Swift with one replica and two proxies.

One proxy serves Swift with Keystone's tokens, the other serves S3 with signed requests.  All files
are beneath the state folder, whose file system must support extended attributes.
"""

import pathlib
import shutil
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from tests.lab import runs
from tests.lab.openstack import accounts
from tests.lab.openstack import api
from tests.lab.openstack import daemon
from tests.lab.openstack import ini
from tests.lab.openstack import installed
from tests.lab.openstack import keystone

RINGS = ("account", "container", "object")
S3_USER = "acstor:images"  #: the access key
_PROXY_FILTERS: ini.Sections = {
    "app:proxy-server": {
        "use": "egg:swift#proxy",
        "account_autocreate": True,
        "allow_account_management": True,
    },
    **{
        f"filter:{name}": {"use": f"egg:swift#{name}"}
        for name in ("catch_errors", "s3api", "tempauth", "keystoneauth", "slo", "dlo")
    },
}


class _Server(daemon.Daemon):
    """One of Swift's servers."""

    def __init__(self, name: str, kind: str, swift: "Swift") -> None:
        super().__init__(f"swift-{name}", swift.folder)
        self.port = daemon.port_of(swift.folder, self.name)
        self._kind, self._swift = kind, swift
        self.conf_file = swift.home / f"{name}.conf"

    def sections(self) -> ini.Sections:
        """Return the options of its kind of server."""
        return {
            "pipeline:main": {"pipeline": f"{self._kind}-server"},
            f"app:{self._kind}-server": {"use": f"egg:swift#{self._kind}"},
        }

    def configure(self) -> None:
        """Write its configuration."""
        common = {
            "bind_ip": daemon.LOOPBACK,
            "bind_port": self.port,
            "workers": 0,
            "user": "root",
            "swift_dir": self._swift.home,
            "devices": self._swift.home / "devices",
            "mount_check": False,
            "disable_fallocate": True,
            "log_address": "/nonexistent",  # then it writes to its own standard error
        }
        ini.write(self.conf_file, {"DEFAULT": common}, self.sections())

    def argv(self) -> Sequence[str | pathlib.Path]:
        """Return the server's command line."""
        return [installed.BIN / f"swift-{self._kind}-server", self.conf_file, "--verbose"]

    def is_ready(self) -> bool:
        """Return whether it listens."""
        return daemon.is_listening(self.port)


class _Proxy(_Server):
    """A proxy server."""

    def __init__(self, name: str, swift: "Swift", pipeline: str, own: ini.Sections) -> None:
        super().__init__(name, "proxy", swift)
        self._pipeline = pipeline
        self.own: dict[str, Mapping[str, object]] = dict(own)

    def sections(self) -> ini.Sections:
        """Return its WSGI pipeline."""
        pipeline = {"pipeline:main": {"pipeline": f"catch_errors {self._pipeline} proxy-server"}}
        return ini.merged(pipeline, _PROXY_FILTERS, self.own)


class Swift:
    """The servers; :attr:`s3_url` and :attr:`url` are those of the proxies.

    :param folder: the state folder of the cloud
    """

    def __init__(self, folder: pathlib.Path, identity: keystone.Keystone) -> None:
        self.folder, self.home = folder, folder / "swift"
        tokens = {
            "paste.filter_factory": "keystonemiddleware.auth_token:filter_factory",
            **api.token_check(identity.auth_url, "glance"),
        }
        roles = {"operator_roles": "admin,member,service"}
        own = {"filter:authtoken": tokens, "filter:keystoneauth": roles}
        self.proxy = _Proxy("proxy", self, "authtoken keystoneauth slo dlo", own)
        self.s3 = _Proxy("s3", self, "s3api tempauth slo dlo", {})
        self.replace_s3_key(api.PASSWORD)
        self._storage = [_Server(kind, kind, self) for kind in RINGS]

    @property
    def s3_url(self) -> str:
        """The URL of S3."""
        return f"http://{daemon.LOOPBACK}:{self.s3.port}"

    def register(self, identity: Any) -> None:
        """Set it in Keystone's catalog, which Glance's driver reads before it deletes."""
        accounts.name_service(identity, "object-store", "swift", self.url("$(project_id)s"))

    def url(self, project_id: str) -> str:
        """Return the Swift URL of a project's account."""
        return f"http://{daemon.LOOPBACK}:{self.proxy.port}/v1/AUTH_{project_id}"

    def replace_s3_key(self, secret: str) -> None:
        """Change the S3 secret key, from the S3 proxy's next start on."""
        name = S3_USER.replace(":", "_")
        self.s3.own["filter:tempauth"] = {f"user_{name}": f"{secret} .admin"}

    def daemons(self) -> list[daemon.Daemon]:
        """Return all servers."""
        return [*self._storage, self.proxy, self.s3]

    def start(self) -> None:
        """Start all servers and wait until they are ready.

        :raises errors.Unusable: one does not start; has the end of its log
        """
        if not (self.home / "object.ring.gz").exists():
            self._make_rings()
        for server in self.daemons():
            server.start()
        for server in self.daemons():
            server.wait_ready()

    def stop(self) -> None:
        """Stop all servers."""
        for server in reversed(self.daemons()):
            server.stop()

    def wipe(self) -> None:
        """Delete all objects; the servers must be stopped."""
        shutil.rmtree(self.home, ignore_errors=True)

    def _make_rings(self) -> None:
        (self.home / "devices" / "d1").mkdir(parents=True, exist_ok=True)
        hashes = {"swift-hash": {"swift_hash_path_suffix": "lab", "swift_hash_path_prefix": "lab"}}
        ini.write(self.home / "swift.conf", hashes)
        for server in self._storage:
            kind = server.conf_file.stem
            builder = [installed.BIN / "swift-ring-builder", self.home / f"{kind}.builder"]
            place = f"r1z1-{daemon.LOOPBACK}:{server.port}/d1"
            runs.tool([*builder, "create", "4", "1", "0"])
            runs.tool([*builder, "add", place, "100"])
            runs.tool([*builder, "rebalance"])
