# SPDX-License-Identifier: Apache-2.0
"""A compute host on this machine: its own host name, mount namespace and address.

A mount namespace hides the folders that each host needs for itself: those of libvirt, run-time
files, and Nova's instances, whose path must be the same on all hosts for live migration.  Its
address is one of 127.0.0.0/8.

The name of its file system at ``/run`` marks all its processes, so a stop ends all of them,
including guests and daemons of daemons.
"""

import dataclasses
import pathlib
import random
import uuid
from collections.abc import Sequence

from acstor_common import errors
from tests.lab import network
from tests.lab import runs
from tests.lab.openstack import daemon

_SCRIPT = """\
hostname "$1"
mount -t tmpfs "$2" /run
mkdir -p /run/libvirt /run/lock /run/sshd
ready=$3
shift 3
while [ $# -gt 0 ]; do
    mount --bind "$1" "$2"
    shift 2
done
touch "$ready"
exec sleep infinity
"""
_LIBVIRTD = """\
listen_tls = 0
listen_tcp = 1
auth_tcp = "none"
listen_addr = "{address}"
unix_sock_group = "root"
unix_sock_rw_perms = "0770"
auth_unix_ro = "none"
auth_unix_rw = "none"
host_uuid = "{uuid}"
"""
_QEMU = """\
user = "root"
group = "root"
swtpm_user = "root"
swtpm_group = "root"
security_driver = "none"
cgroup_controllers = [ ]
namespaces = [ ]
remember_owner = 0
stdio_handler = "logd"
migration_port_min = {port}
migration_port_max = {last_port}
"""
_SSHD = """\
ListenAddress {address}:{port}
HostKey {keys}/host
AuthorizedKeysFile {keys}/user.pub
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
PidFile none
Subsystem sftp internal-sftp
"""
_SSH = """\
Host 127.* {hosts}
  Port {port}
  User root
  IdentityFile {keys}/user
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
"""
_MIGRATIONS = 32


def _address_of(folder: pathlib.Path, name: str) -> str:
    """Return a loopback address, chosen at first use."""
    record = folder / "run" / f"{name}.address"
    if not record.exists():
        record.parent.mkdir(parents=True, exist_ok=True)
        parts = (random.randint(1, 250) for _ in range(3))
        record.write_text(".".join(("127", *map(str, parts))))
    return record.read_text()


def _addresses(folder: pathlib.Path) -> dict[str, str]:
    """Return the address of each machine of the cloud: Nova copies files between them."""
    records = sorted((folder / "run").glob("*.address"))
    return {record.stem: record.read_text() for record in records}


@dataclasses.dataclass(frozen=True)
class Inside(network.Host):
    """The machine as a place to start agents and commands."""

    machine: "Machine"

    @property
    def namespaces(self) -> list[pathlib.Path]:
        """What its processes enter."""
        return self.machine.namespaces

    def _inside(self, argv: Sequence[str | pathlib.Path]) -> list[str]:
        return [*self.machine.enter(), *map(str, argv)]

    def mounts_beneath(self, folder: pathlib.Path) -> list[str]:
        """Return the machine's mount points at or below ``folder``."""
        return runs.mounts_beneath(folder, str(self.machine.pid))


class Machine(daemon.Daemon):
    """The namespaces of one compute host, held open by a process that sleeps."""

    def __init__(self, name: str, folder: pathlib.Path) -> None:
        super().__init__(name, folder)
        self.home = folder / "hosts" / name  #: the host's own files
        self.address = _address_of(folder, name)
        self._ssh_port = daemon.port_of(folder, "ssh")
        self._migration_port = daemon.port_of(folder, f"{name}-migration")
        self._ready = self.home / "ready"
        self._daemons = [
            Inmate(f"{name}-virtlogd", self, ["/usr/sbin/virtlogd"]),
            Inmate(f"{name}-libvirtd", self, ["/usr/sbin/libvirtd", "--listen"]),
            Inmate(f"{name}-sshd", self, ["/usr/sbin/sshd", "-D", "-e", "-f", self.home / "sshd"]),
        ]

    @property
    def inside(self) -> Inside:
        """This machine as a host of the lab."""
        return Inside(self.name, "", self.address, self.home, self)

    @property
    def namespaces(self) -> list[pathlib.Path]:
        """Its namespaces for host name and mounts.

        :raises errors.Unusable: it is not running
        """
        if (pid := self.pid) is None:
            raise errors.Unusable(self.name, f"it is not running: {self.log()[-2000:]}")
        return [pathlib.Path(f"/proc/{pid}/ns", kind) for kind in ("uts", "mnt")]

    def enter(self) -> list[str]:
        """Return the command prefix that enters this machine.

        :raises errors.Unusable: it is not running
        """
        uts, mounts = self.namespaces
        return ["nsenter", f"--mount={mounts}", f"--uts={uts}"]

    def argv(self) -> Sequence[str | pathlib.Path]:
        """Return the command that makes the namespaces and sleeps."""
        binds = [word for pair in self._binds().items() for word in pair]
        return [
            *("unshare", "--mount", "--uts", "--propagation", "private"),
            *("bash", "-euc", _SCRIPT, "bash"),
            *(self.name, self.mark, self._ready, *binds),
        ]

    def _binds(self) -> dict[pathlib.Path, str | pathlib.Path]:
        """Return the bind mounts: this machine's path, by the host's own path."""
        return {
            self.home / "nova": self.folder / "nova",
            self.home / "libvirt": "/var/lib/libvirt",
            self.home / "libvirt-cache": "/var/cache/libvirt",
            self.home / "libvirt-log": "/var/log/libvirt",
            self.home / "libvirt-etc": "/etc/libvirt",
            self.home / "ssh-etc": "/etc/ssh/ssh_config.d",
            self.home / "hosts": "/etc/hosts",
        }

    def configure(self) -> None:
        """Write the configuration of libvirt and sshd, and create the host's folders."""
        self._ready.unlink(missing_ok=True)
        for own, machines in self._binds().items():
            if own.name != "hosts":
                own.mkdir(parents=True, exist_ok=True)
            if own.name == "nova":
                pathlib.Path(machines).mkdir(exist_ok=True)
        (self.home / "libvirt-log" / "qemu").mkdir(exist_ok=True)
        known = pathlib.Path("/etc/hosts").read_text()
        lines = [f"{address} {name}" for name, address in _addresses(self.folder).items()]
        (self.home / "hosts").write_text("\n".join([known, *lines, ""]))
        etc = self.home / "libvirt-etc"
        own_id = uuid.uuid5(uuid.NAMESPACE_DNS, self.mark)
        (etc / "libvirtd.conf").write_text(_LIBVIRTD.format(address=self.address, uuid=own_id))
        ports = {"port": self._migration_port, "last_port": self._migration_port + _MIGRATIONS}
        (etc / "qemu.conf").write_text(_QEMU.format(**ports))
        hosts = " ".join(_addresses(self.folder))
        ssh = {
            "keys": self._keys(),
            "port": self._ssh_port,
            "address": self.address,
            "hosts": hosts,
        }
        (self.home / "sshd").write_text(_SSHD.format(**ssh))
        (self.home / "ssh-etc" / "lab.conf").write_text(_SSH.format(**ssh))

    def _keys(self) -> pathlib.Path:
        """Return the folder of the SSH keys that all hosts of this cloud share."""
        keys = self.folder / "ssh"
        keys.mkdir(exist_ok=True)
        for name in ("host", "user"):
            if not (keys / name).exists():
                runs.tool(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys / name])
        return keys

    def is_ready(self) -> bool:
        """Return whether all bind mounts exist."""
        return self._ready.exists()

    def boot(self) -> None:
        """Start the host and its daemons, without waiting for libvirt.

        :raises errors.Unusable: the host does not start; has the end of its log
        """
        self.start()
        self.wait_ready()
        for part in self._daemons:
            part.start()

    def wait_booted(self) -> None:
        """Wait until guests can be started on it.

        :raises errors.Unusable: libvirt does not answer; has the end of its log
        """
        log = self._daemons[1].log
        runs.wait_for(self._has_libvirt, daemon.READY_DEADLINE_S, self.name, log)

    def _has_libvirt(self) -> bool:
        try:
            self.virsh("version")
        except errors.Unusable:
            return False
        return True

    def virsh(self, *words: str) -> str:
        """Run a virsh command on this host and return its output."""
        return self.inside.run(["virsh", "--connect", "qemu:///system", *words])

    def daemons(self) -> list[daemon.Daemon]:
        """Return the host and its permanent daemons."""
        return [self, *self._daemons]


class Inmate(daemon.Daemon):
    """A daemon that runs on a machine."""

    def __init__(
        self, name: str, machine: Machine, command: Sequence[str | pathlib.Path] = ()
    ) -> None:
        super().__init__(name, machine.folder)
        self.machine, self._command = machine, command

    def argv(self) -> Sequence[str | pathlib.Path]:
        """Return its command line on the machine."""
        return [*self.machine.enter(), *self._command]
