# SPDX-License-Identifier: Apache-2.0
"""The distribution's Ceph with one monitor and one OSD: the minimum for RBD.

Reads and writes need no manager daemon.  All files are in the state folder, including keys; the
OSD's storage is a sparse file.
"""

import pathlib
import shutil
import uuid
from collections.abc import Sequence

from acstor_common import errors
from tests.lab import runs
from tests.lab.openstack import daemon
from tests.lab.openstack import ini

POOL = "images"
USER = "glance"
OSD_BYTES = 2 << 30
_DEADLINE_S = 120.0


def is_installed() -> bool:
    """Return whether the distribution's packages are installed."""
    return all(shutil.which(name) for name in ("ceph", "ceph-mon", "ceph-osd"))


class _Server(daemon.Daemon):
    """The monitor or the OSD."""

    def __init__(self, name: str, command: Sequence[str | pathlib.Path], ceph: "Ceph") -> None:
        super().__init__(name, ceph.folder)
        self._command, self._ceph = command, ceph

    def argv(self) -> Sequence[str | pathlib.Path]:
        """Return the server's command line."""
        return [*self._command, "--conf", self._ceph.conf_file, "-f"]


class Ceph:
    """A cluster on the loopback; :attr:`conf_file` is its clients' configuration."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self.home = folder, folder / "ceph"
        self.conf_file = self.home / "ceph.conf"
        self.keyring = self.home / "keyring"
        self._port = daemon.port_of(folder, "ceph-mon")
        self.monitor = _Server("ceph-mon", ["ceph-mon", "-i", "a"], self)
        self.osd = _Server("ceph-osd", ["ceph-osd", "-i", "0"], self)
        self._up: tuple[int | None, int | None] | None = None

    def start(self) -> None:
        """Start the cluster, if it is stopped, and wait until objects can be written.

        :raises errors.Unusable: it does not start
        """
        if self._up == (self.monitor.pid, self.osd.pid):
            return  # a status query takes as long as a test
        self._up = None
        is_new = not self.conf_file.exists()
        if is_new:
            self._make()
        self.monitor.start()
        runs.wait_for(self._has_monitor, _DEADLINE_S, "Ceph's monitor", self.monitor.log)
        if is_new:
            self._make_osd()
        self.osd.start()
        if is_new:
            self._ask("osd", "pool", "create", POOL, "8")
            rights = ["mon", "profile rbd", "osd", f"profile rbd pool={POOL}"]
            key = self._ask("auth", "get-or-create", f"client.{USER}", *rights)
            (self.home / f"{USER}.keyring").write_text(key)
        # It waits until the object is written.
        probe = ["rados", "--conf", self.conf_file, "--pool", POOL, "put", "probe", self.conf_file]
        runs.tool(probe)
        self._up = (self.monitor.pid, self.osd.pid)

    def stop(self) -> None:
        """Stop the cluster."""
        self.osd.kill()  # unwritten data is not needed
        self.monitor.kill()

    def wipe(self) -> None:
        """Delete all its data; it must be stopped."""
        shutil.rmtree(self.home, ignore_errors=True)

    def store(self) -> ini.Sections:
        """Return Glance's options of an ``rbd`` store on this cluster."""
        options = {
            "rbd_store_pool": POOL,
            "rbd_store_user": USER,
            "rbd_store_ceph_conf": self.conf_file,
        }
        return {"rbd": options}

    def remove(self, image_id: str) -> None:
        """Delete an RBD image without Glance."""
        tool = ["rbd", "--conf", self.conf_file]
        name = f"{POOL}/{image_id}"
        runs.tool([*tool, "snap", "unprotect", f"{name}@snap"])
        runs.tool([*tool, "snap", "rm", f"{name}@snap"])
        runs.tool([*tool, "rm", "--no-progress", name])

    def _ask(self, *words: str) -> str:
        return runs.tool(["ceph", "--conf", self.conf_file, "--connect-timeout", "30", *words])

    def _has_monitor(self) -> bool:
        try:
            self._ask("mon", "stat")
        except errors.Unusable:
            return False
        return True

    def _make(self) -> None:
        for name in ("mon", "osd", "run"):
            (self.home / name).mkdir(parents=True, exist_ok=True)
        cluster_id, address = str(uuid.uuid4()), f"[v2:{daemon.LOOPBACK}:{self._port}]"
        tool = ["ceph-authtool", self.keyring]
        runs.tool([*tool, "--create-keyring", "--gen-key", "-n", "mon.", "--cap", "mon", "allow *"])
        all_rights = ["--cap", "mon", "allow *", "--cap", "osd", "allow *"]
        runs.tool([*tool, "--gen-key", "-n", "client.admin", *all_rights])
        ini.write(
            self.conf_file,
            {
                "global": {
                    "fsid": cluster_id,
                    "mon_host": address,
                    "mon_data": self.home / "mon",
                    "osd_data": self.home / "osd",
                    "run_dir": self.home / "run",
                    "admin_socket": "",
                    "log_file": "",
                    "log_to_stderr": True,
                    "keyring": self.keyring,
                    "mon_data_avail_crit": 1,
                    "mon_allow_pool_size_one": True,
                    "osd_pool_default_size": 1,
                    "osd_pool_default_min_size": 1,
                    "osd_crush_chooseleaf_type": 0,
                    "osd_class_dir": _class_folder(),
                    "bluestore_block_size": OSD_BYTES,
                    "bluestore_cache_autotune": False,
                    "bluestore_cache_size": 64 << 20,
                    "public_addr": daemon.LOOPBACK,
                    "cluster_addr": daemon.LOOPBACK,
                },
                "osd": {"keyring": self.home / "osd" / "keyring"},
                f"client.{USER}": {"keyring": self.home / f"{USER}.keyring"},
            },
        )
        monitors = self.home / "monmap"
        made = ["--create", "--addv", "a", address, "--fsid", cluster_id, monitors]
        runs.tool(["monmaptool", *made])
        keys = ["--monmap", monitors, "--keyring", self.keyring]
        runs.tool(["ceph-mon", "--conf", self.conf_file, "--mkfs", "-i", "a", *keys])

    def _make_osd(self) -> None:
        own_id = str(uuid.uuid4())
        self._ask("osd", "new", own_id)
        keyring = self.home / "osd" / "keyring"
        key = self._ask(
            "auth", "get-or-create", "osd.0", "mon", "allow profile osd", "osd", "allow *"
        )
        keyring.write_text(key)
        runs.tool(["ceph-osd", "--conf", self.conf_file, "-i", "0", "--mkfs", "--osd-uuid", own_id])


def _class_folder() -> pathlib.Path:
    """Return the OSD's folder of object classes; in Debian 13, a path relative to /."""
    reported = runs.tool(["ceph-osd", "--show-config-value", "osd_class_dir"])
    return pathlib.Path("/", reported.strip())
