# SPDX-License-Identifier: Apache-2.0
"""What QEMU runs in while it boots a hostile image: bubblewrap, a user without rights, limits.

The one rule: whoever breaks out of QEMU finds nothing.  There is the system's /usr, only to be
read, and a few empty devices: no file of this host besides, no network, no other process, no
/proc.  What comes in and goes out are the open files that QEMU was started with.

bubblewrap and not a transient unit of systemd, because it asks nobody: it works for root and for
an ordinary user, with and without systemd, in a container, and ends with its parent.  Root needs
no user namespace for it and becomes another user inside; an ordinary user stays the user that it
is, alone in a namespace of its own, in which it can make no other one (``--disable-userns``, from
bubblewrap 0.8 on and where /proc/sys/user may be written).  A memory limit of a control group would
need rights that an ordinary user has not got, so :func:`resident_bytes` is watched by the builder;
where memory becomes short the kernel takes QEMU first (``oom_score_adj``).
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
"""Who QEMU runs as where root starts it: the first of these that there is."""
_PATH = "/usr/bin:/usr/sbin"
_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_SHM_BYTES = 1 << 20
_CHECK_S = 20.0
_REMEDY = (
    "Install bubblewrap, and where this is no root let its user make user namespaces (sysctl "
    "user.max_user_namespaces, kernel.unprivileged_userns_clone, "
    "kernel.apparmor_restrict_unprivileged_userns); or leave boot images to recorded boots; or "
    "trust QEMU and all images with [acstor_glance] builder_sandbox = none (--sandbox none)"
)


class Sandbox(enum.StrEnum):
    """What holds QEMU, beside its own seccomp filter and resource limits."""

    BUBBLEWRAP = "bubblewrap"
    NONE = "none"


def check(sandbox: Sandbox) -> None:
    """Try whether this process can make the sandbox.

    :raises errors.Unusable: it cannot; says why and how to mend it
    """
    if sandbox is Sandbox.NONE:
        return
    argv = [*command(sandbox, {}), "true"]
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
        raise errors.Unusable(BUBBLEWRAP, f"the builder's sandbox cannot be made: {why}", _REMEDY)


def command(
    sandbox: Sandbox,
    bounds: Mapping[str, int | str],
    devices: Sequence[str] = (),
    group: str = "",
    files: Mapping[str, pathlib.Path] | None = None,
) -> list[str]:
    """Return what a program is started by.

    :param bounds: its resource limits, by the names that prlimit(1) has for them; a text is a soft
        and a hard one, ``SOFT:HARD``
    :param devices: what it may use of /dev
    :param group: its group, if it needs a certain one
    :param files: of this host that it sees, by their names there; their modes say what it may do
    """
    limited = ["prlimit", *(f"--{name}={value}" for name, value in bounds.items()), "--"]
    first_to_go = ["choom", "--adjust", "1000", "--"]
    die = ["setpriv", "--pdeathsig", "KILL", "--no-new-privs"]
    dropped = _dropped(group) if os.geteuid() == 0 else []
    if sandbox is Sandbox.BUBBLEWRAP:
        inside = ["setpriv", *dropped] if dropped else []
        return [
            *first_to_go,
            *die,
            BUBBLEWRAP,
            *_walls(devices, files or {}),
            "--",
            *inside,
            *limited,
        ]
    apart = ["unshare", "--net", "--ipc"] if dropped else []
    return [*first_to_go, *apart, *die, *dropped, *limited]


def _dropped(group: str) -> list[str]:
    """Return how root becomes another user, by numbers: there is no list of users inside."""
    user = next(entry for entry in map(_user, USERS) if entry)
    gid = grp.getgrnam(group).gr_gid if group else user.pw_gid
    names = ["--reuid", str(user.pw_uid), "--regid", str(gid), "--clear-groups"]
    return [*names, "--bounding-set", "-all", "--inh-caps", "-all"]


def _user(name: str) -> pwd.struct_passwd | None:
    with contextlib.suppress(KeyError):
        return pwd.getpwnam(name)
    return None


def _walls(devices: Sequence[str], files: Mapping[str, pathlib.Path]) -> list[str]:
    """Return bubblewrap's arguments."""
    kinds = ("ipc", "pid", "net", "uts", "cgroup-try")
    apart = [f"--unshare-{kind}" for kind in kinds]
    if os.geteuid():
        rights = ["--unshare-user", *_no_other_users(), "--cap-drop", "ALL"]
    else:
        wanted = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")  # setpriv's, which drops them
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
def _no_other_users() -> list[str]:
    """Return what keeps programs inside from making user namespaces, where that can be had.

    In those they would have capabilities, and with them more of the kernel to attack.
    """
    option = "--disable-userns"
    argv = [BUBBLEWRAP, "--unshare-user", option, "--ro-bind", "/", "/", "true"]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_CHECK_S, check=False, cwd="/")
    except (OSError, subprocess.TimeoutExpired):
        return []  # check() says what is wrong
    return [] if done.returncode else [option]


def is_installed(sandbox: Sandbox, program: str) -> bool:
    """Say whether the sandbox has a program."""
    path = _PATH if sandbox is Sandbox.BUBBLEWRAP else None
    return shutil.which(program, path=path) is not None


# What is seen of it from outside


def process_tree(pid: int) -> list[int]:
    """Return a process and all that descend from it; those that have ended are left out."""
    found = [pid]
    for one in found:
        for path in pathlib.Path(f"/proc/{one}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += map(int, path.read_text().split())
    return found


def resident_bytes(pid: int) -> int:
    """Return the memory that a process and its descendants take."""
    pages = 0
    for one in process_tree(pid):
        with contextlib.suppress(OSError, ValueError, IndexError):
            pages += int(pathlib.Path(f"/proc/{one}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_wait_s(pid: int) -> float:
    """Return how long a process has waited for a processor so far, in its unluckiest thread.

    0 where the kernel does not count it, or the process has ended.
    """
    longest_ns = 0
    for one in process_tree(pid):
        for path in pathlib.Path(f"/proc/{one}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError, ValueError, IndexError):  # the thread has ended
                longest_ns = max(longest_ns, int(path.read_text().split()[1]))
    return longest_ns / 1e9
