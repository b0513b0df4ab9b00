# SPDX-License-Identifier: Apache-2.0
"""Notifies the service manager (sd_notify(3)); keeps the mount's descriptors in its store."""

import array
import contextlib
import os
import pathlib
import socket
import subprocess

from acstor_agent.mount import fuse_connection
from acstor_agent.process import fd_store

FIRST_FD = 3  # first descriptor passed by a manager (sd_listen_fds(3))
MOUNT = "fuse-mount"  # name of both descriptors, sent in one message, so never only one is kept
STOP_EXTENSION_S = 30.0
SYSTEMCTL_S = 5.0
SYSTEM_BUS = pathlib.Path("/run/dbus/system_bus_socket")
"""On the bus, AppArmor lets the agent only query systemd. systemd's own socket allows everything
to root, so it is used only without a bus."""


def notify_ready() -> None:
    """Notify the service manager (Type=notify) that the agent serves."""
    _notify("READY=1")


def is_available() -> bool:
    """Return whether a service manager started this process."""
    return bool(os.environ.get("NOTIFY_SOCKET"))


def _notify(text: str, *descriptors: int) -> bool:
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
    """The descriptor store of the service manager, if there is one."""

    def __init__(self) -> None:
        self._handed: dict[str, list[int]] = {}

    def store_connection(self, connection: fuse_connection.MountConnection) -> bool:
        """Store a connection; return whether the manager keeps it."""
        handed = (connection.fuse_fd, connection.record.fd)
        return _notify(f"FDSTORE=1\nFDNAME={MOUNT}", *handed) and _room() >= len(handed)

    def verify_stored(self, connection: fuse_connection.MountConnection, is_stored: bool) -> bool:
        """Return ``is_stored``: the manager keeps descriptors until the host stops."""
        return is_stored

    def take_connection(self) -> fuse_connection.MountConnection | None:
        """Return the connection that the manager passed to this process, of any version, once."""
        self._handed = _handed_over()
        kept = fuse_connection.from_descriptors([fd for fds in self._handed.values() for fd in fds])
        if kept is None and self._handed:  # only a record; its mount ended
            self.drop_connection()
        return kept

    def drop_connection(self) -> None:
        """Tell the manager to drop the descriptors."""
        for name in {MOUNT, *self._handed}:
            _notify(f"FDSTOREREMOVE=1\nFDNAME={name}")

    def stop_reason(self) -> fd_store.StopReason:
        """Return why SIGTERM came, by systemd's job list: only a restart keeps descriptors."""
        if not os.environ.get("NOTIFY_SOCKET"):
            return fd_store.StopReason.SIGNALLED
        if _systemctl("is-system-running").strip() == "stopping":
            return fd_store.StopReason.HOST_STOPS
        jobs = [line.split() for line in _systemctl("list-jobs", "--no-legend").splitlines()]
        is_stop = any(job[1:3] == [_unit(), "stop"] for job in jobs)
        return fd_store.StopReason.UNIT_STOPS if is_stop else fd_store.StopReason.SIGNALLED

    def wait_longer(self, why: str) -> None:
        """Extend the stop timeout by :data:`STOP_EXTENSION_S`, with the reason as status."""
        line = why.replace("\n", " ")
        _notify(f"EXTEND_TIMEOUT_USEC={int(STOP_EXTENSION_S * 1e6)}\nSTATUS={line}")


def _room() -> int:
    """Return how many descriptors the manager keeps: systemd passes it from 254 on."""
    value = os.environ.get("FDSTORE")
    if value is None and (unit := _unit()):
        value = _systemctl("show", "--property=FileDescriptorStoreMax", "--value", unit).strip()
    return int(value) if value and value.isdecimal() else 0


def _unit() -> str:
    groups = pathlib.Path("/proc/self/cgroup").read_text().splitlines()
    return next((name for name in (pathlib.PurePath(line).name for line in groups)
                 if name.endswith(".service")), "")  # fmt: skip


def _systemctl(*words: str) -> str:
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
    """Return the descriptors passed to this process, by name; not inheritable."""
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
