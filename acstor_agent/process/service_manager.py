# SPDX-License-Identifier: Apache-2.0
"""What the agent tells the service manager (sd_notify(3)), and what it leaves with it.

The messages are datagrams to the socket that the manager names.  A manager with
a descriptor store keeps the FUSE connection for us: the descriptor, and the
record of what the kernel was told of the mount.  When the supervisor is
started again, both are handed to it, and guests that read meanwhile see a pause.
"""

import array
import contextlib
import os
import pathlib
import socket
import subprocess

from acstor_agent.mount import fuse_connection
from acstor_agent.process import fd_store

FIRST_FD = 3
"""Where descriptors that a manager hands over begin (sd_listen_fds(3))."""
MOUNT = "fuse-mount"
"""The name of both descriptors: one message hands them over, so it is never one of them."""
PATIENCE_S = 30.0
SYSTEMCTL_S = 5.0
SYSTEM_BUS = pathlib.Path("/run/dbus/system_bus_socket")
"""There AppArmor allows the agent to ask systemd and nothing else; systemd's own socket gives all
that root may do, and is asked only where there is no bus."""


def notify_ready() -> None:
    """Tell a service manager that waits for it (Type=notify) that the mirror is served."""
    _tell("READY=1")


def is_there() -> bool:
    """Say whether a service manager has started this process."""
    return bool(os.environ.get("NOTIFY_SOCKET"))


def _tell(text: str, *descriptors: int) -> bool:
    """Send a message; return whether there is a manager that took it."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return False
    handed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.connect(address.replace("@", "\0", 1))
            manager.sendmsg([text.encode()], handed if descriptors else [])
    except OSError:
        return False
    return True


class DescriptorStore:
    """The store of the service manager that started this process, if it has one."""

    def __init__(self) -> None:
        self._handed: dict[str, list[int]] = {}

    def put(self, connection: fuse_connection.Connection) -> bool:
        """Leave a connection with the manager; return whether it keeps it."""
        handed = (connection.fuse_fd, connection.record.fd)
        return _tell(f"FDSTORE=1\nFDNAME={MOUNT}", *handed) and _room() >= len(handed)

    def ensure_kept(self, connection: fuse_connection.Connection, is_kept: bool) -> bool:
        """Do nothing: it keeps what it has as long as it lives, and the host with it."""
        return is_kept

    def take_connection(self) -> fuse_connection.Connection | None:
        """Return the connection that the manager handed to this process, once.

        What another version has left has other names, and is taken for what it is.
        """
        self._handed = _handed_over()
        kept = fuse_connection.kept([fd for fds in self._handed.values() for fd in fds])
        if kept is None and self._handed:  # a record, whose mount has ended
            self.drop_connection()
        return kept

    def drop_connection(self) -> None:
        """Have the manager let go of what it keeps."""
        for name in {MOUNT, *self._handed}:
            _tell(f"FDSTOREREMOVE=1\nFDNAME={name}")

    def stop_reason(self) -> fd_store.Stopping:
        """Return why the manager, or somebody behind its back, has sent SIGTERM.

        systemd keeps descriptors while a unit is restarted, by ``systemctl restart`` or because
        it has ended by itself, and lets go of them when it is stopped.  Only its list of jobs
        tells one from the other.
        """
        if not os.environ.get("NOTIFY_SOCKET"):
            return fd_store.Stopping.SIGNALLED
        if _systemctl("is-system-running").strip() == "stopping":
            return fd_store.Stopping.HOST_STOPS
        jobs = [line.split() for line in _systemctl("list-jobs", "--no-legend").splitlines()]
        is_stop = any(job[1:3] == [_unit(), "stop"] for job in jobs)
        return fd_store.Stopping.UNIT_STOPS if is_stop else fd_store.Stopping.SIGNALLED

    def wait_longer(self, why: str) -> None:
        """Have the manager wait for :data:`PATIENCE_S` more, and show why."""
        line = why.replace("\n", " ")
        _tell(f"EXTEND_TIMEOUT_USEC={int(PATIENCE_S * 1e6)}\nSTATUS={line}")


def _room() -> int:
    """Return how many descriptors the manager keeps; one that keeps none takes the message, too.

    systemd says so from 254 on; one before that is asked.
    """
    said = os.environ.get("FDSTORE")
    if said is None and (unit := _unit()):
        said = _systemctl("show", "--property=FileDescriptorStoreMax", "--value", unit).strip()
    return int(said) if said and said.isdecimal() else 0


def _unit() -> str:
    """Return the unit of this process, by its control group (any hierarchy of them has it)."""
    groups = pathlib.Path("/proc/self/cgroup").read_text().splitlines()
    return next((name for name in (pathlib.PurePath(line).name for line in groups)
                 if name.endswith(".service")), "")  # fmt: skip


def _systemctl(*words: str) -> str:
    """Return what systemctl says; nothing if it cannot."""
    by_bus = {"SYSTEMCTL_FORCE_BUS": "1"} if SYSTEM_BUS.is_socket() else {}
    try:
        done = subprocess.run(
            ["systemctl", "--no-pager", *words],
            capture_output=True, text=True, timeout=SYSTEMCTL_S, check=False,
            env={**os.environ, **by_bus},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def _handed_over() -> dict[str, list[int]]:
    """Return the descriptors that are meant for this process, by name; children get none."""
    environment = {name: os.environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS")}
    names = os.environ.pop("LISTEN_FDNAMES", "").split(":")
    if environment["LISTEN_PID"] != str(os.getpid()):
        return {}
    found: dict[str, list[int]] = {}
    for fd in range(FIRST_FD, FIRST_FD + int(environment["LISTEN_FDS"] or 0)):
        with contextlib.suppress(OSError):  # one that is closed
            os.set_inheritable(fd, False)
            name = names[fd - FIRST_FD] if fd - FIRST_FD < len(names) else str(fd)
            found.setdefault(name, []).append(fd)
    return found
