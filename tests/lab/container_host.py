# SPDX-License-Identifier: Apache-2.0
"""A container host with podman: Debian 13 in namespaces of its own.

Images stay in its root, below ``.cache/packages``, so only changes are built again.  All mounts
and processes are in its namespaces, and end with its process.
"""

import pathlib
import shutil
import subprocess
from typing import Self

from acstor_common import errors
from tests.lab import debian_root
from tests.lab import runs

BASE = "localhost/debian:trixie-slim"
START_S = 60.0
END_S = 30.0
READY = "run/acstor-ready"
# crun supports no mix of both cgroup versions; no cgroups are used here.
_ROOM = f"""
if mountpoint -q /sys/fs/cgroup; then umount --lazy --recursive /sys/fs/cgroup; fi
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount --make-rshared /
touch /{READY}
exec sleep infinity
"""
_ENGINE = """
[containers]
pids_limit = 0
keyring = false
log_driver = "k8s-file"
default_sysctls = []
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
_ENVIRONMENT = (
    "HOME=/root",
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "DISABLE_HC_SYSTEMD=true",
    "PODMAN_IGNORE_CGROUPSV1_WARNING=1",
)
_OF_FORMER_RUNS = (
    "etc/acstor",
    "etc/glance",
    "etc/kolla",
    "run/acstor",
    "srv/acstor",
    "srv/images",
    "srv/kolla",
    "var/lib/acstor",
)


class ContainerHost:
    """Context manager: the host, with HEAD at /srv/acstor, and the image BASE."""

    def __init__(self) -> None:
        self._root = debian_root.root("trixie", "systemd-sysv", "podman", "podman-compose")

    def __enter__(self) -> Self:
        """Start it.

        :raises errors.Unusable: this machine cannot run it
        """
        for name in _OF_FORMER_RUNS:
            shutil.rmtree(self._root / name, ignore_errors=True)
        shutil.rmtree(self._root / debian_root.CLONE, ignore_errors=True)
        runs.tool(["git", "clone", "--quiet", debian_root.ROOT, self._root / debian_root.CLONE])
        engine = self._root / "etc/containers/containers.conf"
        engine.parent.mkdir(exist_ok=True)
        engine.write_text(_ENGINE)
        argv = ["bash", debian_root.FRESH, "--in", self._root, "bash", "-euc", _ROOM]
        self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
        with runs.on_failure(self.__exit__):
            runs.wait_for(self._is_there, START_S, "a host of containers", lambda: "")
            self.run("podman rm --all --force --time 1 && rm -rf /var/lib/acstor /etc/acstor")
            self._import_base()
        return self

    def __exit__(self, *_: object) -> None:
        runs.end(self._process, END_S)

    def _is_there(self) -> bool:
        if self._process.poll() is not None:
            raise errors.Unusable("a host of containers", "it has ended")
        return self.path("/" + READY).exists()

    def _pid(self) -> int:
        """Return the innermost child, a process that sleeps."""
        pid = self._process.pid
        while children := pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            pid = int(children[0])
        return pid

    def _import_base(self) -> None:
        self.run(f"podman image exists {BASE} || touch /run/no-base")
        if not self.path("/run/no-base").exists():
            return
        bare = debian_root.root("trixie")
        archive = self._root / "srv/base.tar"
        leave = ("--exclude=./root/acstor", "--exclude=./var/cache/apt/*")
        runs.tool(["tar", "-C", bare, "--one-file-system", *leave, "-cf", archive, "."])
        self.run(f"podman import --quiet /srv/base.tar {BASE} && rm /srv/base.tar")

    def path(self, inside: str | pathlib.Path) -> pathlib.Path:
        """Return this machine's path of one of its files."""
        return pathlib.Path(f"/proc/{self._pid()}/root{inside}")

    def run(self, line: str) -> str:
        """Run a shell line there; return its output.

        :raises errors.Unusable: it failed; has the output
        """
        enter = ["nsenter", f"--target={self._pid()}", "--mount", "--pid", "--"]
        shell = ["bash", "-ec", f"cd /root/acstor\n{{ {line}\n}} 2>&1"]
        return runs.tool([*enter, "env", "--ignore-environment", *_ENVIRONMENT, *shell])
