# SPDX-License-Identifier: Apache-2.0
"""Who nova-compute is on this host, and looks with its rights.

The rule: what keeps nova-compute out is seen only by who may no more than it may.  So rights are
those of its process where it runs, and they are taken for one look and given back.

Anybody can call a process nova-compute, and root reads the files that its command line names.  So
one is believed only if it is a Python and of nobody but root, the user ``nova``, or the owner of
Nova's folder of options: these say what nova-compute reads anyway.  A program that takes the
rights of another user, such as ``su``, is of him who started it too, and is no Python.
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
from acstor_nova import check_results

COMMAND = "nova-compute"
ACCOUNT = "nova"
FOLDER = "etc/nova"
_OPTIONS = ("--config-file", "--config-dir")


class User(NamedTuple):
    """Somebody's rights.

    :param groups: all of them, ``gid`` too
    :param pid: of the nova-compute that has them; None: it does not run, and would have these
    """

    name: str
    uid: int
    gid: int
    groups: frozenset[int]
    pid: int | None = None

    def __str__(self) -> str:
        """Return who it is, in words."""
        whose = f"nova-compute, process {self.pid}" if self.pid else "nova-compute does not run"
        return f"user {self.name}, groups {names_of(self.groups)} ({whose})"


def names_of(groups: frozenset[int]) -> str:
    """Return the names of groups, in order."""
    return ", ".join(sorted(map(group_name, groups)))


def group_name(gid: int) -> str:
    """Return a group's name; its number where it has none."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def user_name(uid: int) -> str:
    """Return a user's name; its number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def current_user() -> User:
    """Return who this process is."""
    uid, gid = os.geteuid(), os.getegid()
    return User(user_name(uid), uid, gid, frozenset({gid, *os.getgroups()}))


def account(name: str) -> User:
    """Return the rights that a user's processes begin with.

    :raises errors.Unusable: there is no such user
    """
    try:
        found = pwd.getpwnam(name)
    except KeyError as e:
        raise errors.Unusable("--user", f"there is no user {name}", "Name nova-compute's") from e
    groups = frozenset(os.getgrouplist(name, found.pw_gid))
    return User(name, found.pw_uid, found.pw_gid, groups)


def find_user(name: str, root: pathlib.Path = pathlib.Path("/")) -> User:
    """Return with whose rights to look.

    :param name: of a user; empty: whoever runs nova-compute, or else its usual user, or else us
    :raises errors.Unusable: there is no such user
    """
    runs = running_user(root)
    if runs is not None and name in ("", runs.name):
        return runs
    try:
        return account(name or ACCOUNT)
    except errors.Unusable:
        if name:
            raise
        return current_user()


def running_user(root: pathlib.Path = pathlib.Path("/")) -> User | None:
    """Return who the nova-compute of this host is, if one runs."""
    for pid in _pids(root):
        try:
            lines = (root / "proc" / str(pid) / "status").read_text().splitlines()
            fields = dict(line.split(":", 1) for line in lines if ":" in line)
            uid, gid = (int(fields[name].split()[1]) for name in ("Uid", "Gid"))
            groups = frozenset({gid, *map(int, fields["Groups"].split())})
        except (OSError, ValueError, KeyError, IndexError):
            continue  # it has just ended
        return User(user_name(uid), uid, gid, groups, pid)
    return None


def config_args(root: pathlib.Path = pathlib.Path("/")) -> list[str]:
    """Return the files and folders of options that the running nova-compute was given."""
    words = next((_words(root, pid) for pid in _pids(root)), [])
    found = []
    for word, after in itertools.pairwise([*words, ""]):
        name, _, own = word.partition("=")
        value = own or after
        if name in _OPTIONS and os.path.isabs(value):
            found.append(f"{name}={value}")
    return found


def _pids(root: pathlib.Path) -> list[int]:
    every = [int(path.name) for path in (root / "proc").glob("[0-9]*") if path.name.isdecimal()]
    return [
        pid for pid in sorted(every) if _is_compute(_words(root, pid)) and _is_believed(root, pid)
    ]


def _is_believed(root: pathlib.Path, pid: int) -> bool:
    """Say whether a process may say what root reads: see the rule of this module."""
    believed = {0}
    with contextlib.suppress(KeyError):
        believed.add(pwd.getpwnam(ACCOUNT).pw_uid)
    with contextlib.suppress(OSError):
        believed.add((root / FOLDER).stat().st_uid)
    try:
        lines = (root / "proc" / str(pid) / "status").read_text().splitlines()
        [uids] = (line.split()[1:] for line in lines if line.startswith("Uid:"))
        return bool(uids) and {*map(int, uids)} <= believed and _is_python(root, pid)
    except (OSError, ValueError):
        return False  # it has just ended


def _is_python(root: pathlib.Path, pid: int) -> bool:
    """Say whether a process runs a Python, as far as may be seen: root may always see it."""
    try:
        program = (root / "proc" / str(pid) / "exe").readlink()
    except PermissionError:
        return True
    return program.name.startswith("python")


def _words(root: pathlib.Path, pid: int) -> list[str]:
    """Return a process's command line, or what it wrote there as its title."""
    try:
        line = (root / "proc" / str(pid) / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return []
    return line.replace("\0", " ").replace("[", " ").replace("]", " ").split()


def _is_compute(words: list[str]) -> bool:
    """Say whether it is the script, the script behind its Python, or a title of its own."""
    return any(os.path.basename(word).rstrip(":") == COMMAND for word in words[:2])


@contextlib.contextmanager
def acting_as(user: User) -> Iterator[None]:
    """Have a user's rights on files and sockets, where we may take them."""
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


def check_user(user: User, guards: frozenset[int]) -> check_results.Finding:
    """Say with whose rights this host is looked at, and whether they are nova-compute's.

    :param guards: the groups that nova-compute needs; without others it works as well
    """
    what, ours = "checked as", current_user()
    if ours.uid not in (0, user.uid) or (ours.uid and not user.groups <= ours.groups):
        detail = f"{ours.name}, groups {names_of(ours.groups)}; nova-compute is {user}"
        remedy = "Run this command as root: it then looks with the rights of nova-compute."
        return check_results.Finding(what, check_results.Level.WARNING, detail, remedy)
    with contextlib.suppress(errors.Unusable):
        missing = (account(user.name).groups - user.groups) & guards
        if user.pid and user.uid and missing:
            detail = f"{user}; its account is in {names_of(missing)} too, its process is not"
            remedy = "Restart nova-compute. If that does not help, its unit names other groups."
            return check_results.Finding(what, check_results.Level.WARNING, detail, remedy)
    return check_results.Finding(what, check_results.Level.OK, str(user))
