# SPDX-License-Identifier: Apache-2.0
"""Finds the user of nova-compute, so that checks run with its permissions.

Any process may be named nova-compute, and root reads the files in its command line. So a process
counts only if it is a Python, and belongs only to root, the user ``nova`` or the owner of Nova's
configuration folder. A program such as ``su`` belongs to its caller too.
"""

import contextlib
import grp
import itertools
import os
import pathlib
import pwd
from collections.abc import Iterator
from typing import NamedTuple

from acstor_common import errors

COMMAND = "nova-compute"
ACCOUNT = "nova"
FOLDER = "etc/nova"
_OPTIONS = ("--config-file", "--config-dir")


class User(NamedTuple):
    """A user's permissions; ``pid``: of nova-compute, None if it does not run."""

    name: str
    uid: int
    gid: int
    groups: frozenset[int]
    pid: int | None = None

    def __str__(self) -> str:
        whose = f"nova-compute, process {self.pid}" if self.pid else "nova-compute does not run"
        return f"user {self.name}, groups {names_of(self.groups)} ({whose})"


def names_of(groups: frozenset[int]) -> str:
    """Return the names of groups, in order."""
    return ", ".join(sorted(map(group_name, groups)))


def group_name(gid: int) -> str:
    """Return a group's name, or its number without one."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def user_name(uid: int) -> str:
    """Return a user's name, or its number without one."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def current_user() -> User:
    """Return the user of this process."""
    uid, gid = os.geteuid(), os.getegid()
    return User(user_name(uid), uid, gid, frozenset({gid, *os.getgroups()}))


def account(name: str) -> User:
    """Return the permissions of a user's new processes; errors.Unusable if unknown."""
    try:
        found = pwd.getpwnam(name)
    except KeyError as e:
        raise errors.Unusable(
            "--user", f"there is no user {name}", "Use that of nova-compute"
        ) from e
    groups = frozenset(os.getgrouplist(name, found.pw_gid))
    return User(name, found.pw_uid, found.pw_gid, groups)


def find_user(
    name: str, root: pathlib.Path = pathlib.Path("/"), service_account: str = ACCOUNT
) -> User:
    """Return the user ``name``; "": nova-compute's, else ``service_account``, else the current."""
    runs = running_user(root, service_account)
    if runs is not None and name in ("", runs.name):
        return runs
    try:
        return account(name or service_account)
    except errors.Unusable:
        if name:
            raise
        return current_user()


def running_user(
    root: pathlib.Path = pathlib.Path("/"), service_account: str = ACCOUNT
) -> User | None:
    """Return the user of the running nova-compute, if any."""
    for pid in _pids(root, service_account):
        try:
            lines = (root / "proc" / str(pid) / "status").read_text().splitlines()
            fields = dict(line.split(":", 1) for line in lines if ":" in line)
            uid, gid = (int(fields[name].split()[1]) for name in ("Uid", "Gid"))
            groups = frozenset({gid, *map(int, fields["Groups"].split())})
        except (OSError, ValueError, KeyError, IndexError):
            continue  # the process has ended
        return User(user_name(uid), uid, gid, groups, pid)
    return None


def config_args(root: pathlib.Path = pathlib.Path("/")) -> list[str]:
    """Return the configuration options of the running nova-compute's command line."""
    words = next((_words(root, pid) for pid in _pids(root, ACCOUNT)), [])
    found = []
    for word, after in itertools.pairwise([*words, ""]):
        name, _, own = word.partition("=")
        value = own or after
        if name in _OPTIONS and os.path.isabs(value):
            found.append(f"{name}={value}")
    return found


def _pids(root: pathlib.Path, service_account: str) -> list[int]:
    every = [int(path.name) for path in (root / "proc").glob("[0-9]*") if path.name.isdecimal()]
    return [
        pid
        for pid in sorted(every)
        if _is_compute(_words(root, pid)) and _is_trusted(root, pid, service_account)
    ]


def _is_trusted(root: pathlib.Path, pid: int, service_account: str) -> bool:
    """Return whether root may trust a process's command line (see the module)."""
    trusted = {0}
    with contextlib.suppress(KeyError):
        trusted.add(pwd.getpwnam(service_account).pw_uid)
    with contextlib.suppress(OSError):
        trusted.add((root / FOLDER).stat().st_uid)
    try:
        lines = (root / "proc" / str(pid) / "status").read_text().splitlines()
        [uids] = (line.split()[1:] for line in lines if line.startswith("Uid:"))
        return bool(uids) and {*map(int, uids)} <= trusted and _is_python(root, pid)
    except (OSError, ValueError):
        return False  # the process has ended


def _is_python(root: pathlib.Path, pid: int) -> bool:
    try:
        program = (root / "proc" / str(pid) / "exe").readlink()
    except PermissionError:
        return True
    return program.name.startswith("python")


def _words(root: pathlib.Path, pid: int) -> list[str]:
    try:
        line = (root / "proc" / str(pid) / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return []
    return line.replace("\0", " ").replace("[", " ").replace("]", " ").split()


def _is_compute(words: list[str]) -> bool:
    return any(os.path.basename(word).rstrip(":") == COMMAND for word in words[:2])


@contextlib.contextmanager
def acting_as(user: User) -> Iterator[None]:
    """Use a user's permissions in the block, if this process is root."""
    before = current_user()
    if os.geteuid() != 0 or user.uid == 0:
        yield
        return
    _become(user)
    try:
        yield
    finally:
        os.seteuid(0)
        _become(before)


def _become(user: User) -> None:
    os.setgroups(sorted(user.groups))
    os.setegid(user.gid)
    os.seteuid(user.uid)
