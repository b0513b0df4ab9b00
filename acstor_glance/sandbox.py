# SPDX-License-Identifier: Apache-2.0
"""Sandbox for QEMU with hostile images: bubblewrap, another user and limits.

A guest that breaks out of QEMU finds a read-only /usr and a few empty devices: no other file of the
host, no network, no other process, no /proc.

Root becomes another user inside. Another user gets a user namespace in which it cannot create more
(``--disable-userns``: bubblewrap 0.8, writable /proc/sys/user). Memory limits of control groups
need privileges, so the builder watches :func:`resident_bytes`; the kernel kills QEMU first.
"""

import contextlib
import enum
import functools
import grp
import os
import pathlib
import pwd
import shutil
import subprocess
from collections.abc import Mapping
from collections.abc import Sequence

from acstor_common import errors

BUBBLEWRAP = "bwrap"
USERS = ("acstor-build", "nobody")
"""Users for QEMU when root starts it; the first that exists is used."""
_PATH = "/usr/bin:/usr/sbin"
_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_SHM_BYTES = 1 << 20
_CHECK_S = 20.0
_REMEDY = (
    "Install bubblewrap, and unless root runs this, let its user create user namespaces (sysctl "
    "user.max_user_namespaces, kernel.unprivileged_userns_clone, "
    "kernel.apparmor_restrict_unprivileged_userns); or use recorded boots only; or "
    "trust QEMU and all images with [acstor_glance] builder_sandbox = none (--sandbox none)"
)


class Sandbox(enum.StrEnum):
    """Sandbox of QEMU, in addition to its seccomp filter and resource limits."""

    BUBBLEWRAP = "bubblewrap"
    NONE = "none"


def check_sandbox(sandbox: Sandbox) -> None:
    """Raise errors.Unusable if this process cannot create the sandbox."""
    if sandbox is Sandbox.NONE:
        return
    argv = [*command_prefix(sandbox, {}), "true"]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_CHECK_S, check=False, cwd="/"
        )
    except FileNotFoundError as e:
        raise errors.Unusable(str(e.filename), "it is not installed", _REMEDY) from e
    except subprocess.TimeoutExpired as e:
        raise errors.Unusable(BUBBLEWRAP, f"no answer in {_CHECK_S:g} s", _REMEDY) from e
    if done.returncode:
        why = done.stderr.strip() or f"exit status {done.returncode}"
        raise errors.Unusable(BUBBLEWRAP, f"cannot create the builder's sandbox: {why}", _REMEDY)


def command_prefix(
    sandbox: Sandbox,
    rlimits: Mapping[str, int | str],  # of prlimit(1); a text is ``SOFT:HARD``
    devices: Sequence[str] = (),  # files in /dev
    group: str = "",
    files: Mapping[str, pathlib.Path] | None = None,  # by their paths inside; their modes apply
) -> list[str]:
    """Return the command prefix that starts a program in the sandbox."""
    limited = ["prlimit", *(f"--{name}={value}" for name, value in rlimits.items()), "--"]
    first_to_go = ["choom", "--adjust", "1000", "--"]
    die = ["setpriv", "--pdeathsig", "KILL", "--no-new-privs"]
    dropped = _setpriv_options(group) if os.geteuid() == 0 else []
    if sandbox is Sandbox.BUBBLEWRAP:
        inside = ["setpriv", *dropped] if dropped else []
        return [
            *first_to_go,
            *die,
            BUBBLEWRAP,
            *_bubblewrap_options(devices, files or {}),
            "--",
            *inside,
            *limited,
        ]
    apart = ["unshare", "--net", "--ipc"] if dropped else []
    return [*first_to_go, *apart, *die, *dropped, *limited]


def _setpriv_options(group: str) -> list[str]:
    user = next(entry for entry in map(_user, USERS) if entry)
    gid = grp.getgrnam(group).gr_gid if group else user.pw_gid
    names = ["--reuid", str(user.pw_uid), "--regid", str(gid), "--clear-groups"]
    return [*names, "--bounding-set", "-all", "--inh-caps", "-all"]


def _user(name: str) -> pwd.struct_passwd | None:
    with contextlib.suppress(KeyError):
        return pwd.getpwnam(name)
    return None


def _bubblewrap_options(devices: Sequence[str], files: Mapping[str, pathlib.Path]) -> list[str]:
    kinds = ("ipc", "pid", "net", "uts", "cgroup-try")
    apart = [f"--unshare-{kind}" for kind in kinds]
    if os.geteuid():
        rights = ["--unshare-user", *_userns_options(), "--cap-drop", "ALL"]
    else:
        wanted = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")  # setpriv needs them, and drops them
        added = [word for name in wanted for word in ("--cap-add", name)]
        rights = ["--cap-drop", "ALL", *added]
    seen = ["--ro-bind", "/usr", "/usr", "--tmpfs", "/usr/local", "--dev", "/dev"]
    seen += ["--size", str(_SHM_BYTES), "--tmpfs", "/dev/shm"]
    for name in _LINKS:
        path = pathlib.Path("/", name)
        if path.is_symlink():
            seen += ["--symlink", str(path.readlink()), f"/{name}"]
        elif path.is_dir():
            seen += ["--ro-bind", f"/{name}", f"/{name}"]
    for device in devices:
        seen += ["--dev-bind", device, device]
    for name, path in files.items():
        seen += ["--bind", str(path), name]
    closed = [
        "--remount-ro",
        "/dev",
        "--remount-ro",
        "/",
        "--chdir",
        "/",
        "--clearenv",
        "--setenv",
        "PATH",
        _PATH,
    ]
    return [*apart, *rights, *seen, *closed, "--new-session", "--die-with-parent"]


@functools.cache
def _userns_options() -> list[str]:
    option = "--disable-userns"
    argv = [BUBBLEWRAP, "--unshare-user", option, "--ro-bind", "/", "/", "true"]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_CHECK_S, check=False, cwd="/")
    except (OSError, subprocess.TimeoutExpired):
        return []  # check() reports the reason
    return [] if done.returncode else [option]


def is_installed(sandbox: Sandbox, program: str) -> bool:
    """Return whether a program is installed where the sandbox finds it."""
    path = _PATH if sandbox is Sandbox.BUBBLEWRAP else None
    return shutil.which(program, path=path) is not None


def process_tree(pid: int) -> list[int]:
    """Return the PIDs of a process and of its descendants."""
    found = [pid]
    for process in found:
        for path in pathlib.Path(f"/proc/{process}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += map(int, path.read_text().split())
    return found


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process and its descendants."""
    pages = 0
    for process in process_tree(pid):
        with contextlib.suppress(OSError, ValueError, IndexError):
            pages += int(pathlib.Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def longest_cpu_wait_s(pid: int) -> float:
    """Return the longest wait of any thread for a processor; 0 if unknown."""
    longest_ns = 0
    for process in process_tree(pid):
        for path in pathlib.Path(f"/proc/{process}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError, ValueError, IndexError):  # the thread has ended
                longest_ns = max(longest_ns, int(path.read_text().split()[1]))
    return longest_ns / 1e9
