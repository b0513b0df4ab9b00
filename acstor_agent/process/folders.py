# SPDX-License-Identifier: Apache-2.0
"""Creates folders of the agent, makes them private, and locks them."""

import contextlib
import errno
import fcntl
import logging
import os
import pathlib
import stat
from collections.abc import Iterator
from typing import IO

from acstor_common import errors

LOG = logging.getLogger(__name__)


def make_folder(folder: pathlib.Path) -> None:
    """Create a folder and its parents, traversable by others, or raise Unusable."""
    try:
        with umask(0o022):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        if e.errno != errno.ENOTCONN:  # a dead mount, which is unmounted later
            raise errors.Unusable(str(folder), f"cannot be created: {e.strerror}") from e


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    """Set the umask for a block; only while there is one thread."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def make_private(folder: pathlib.Path) -> None:
    """Make a folder, and its direct contents, private to its owner, or raise Unusable.

    Deeper files cannot be reached by others; the modes of disks are visible to guests.
    """
    make_folder(folder.parent)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if restrict(folder):
            LOG.info("%s was accessible to other users; now only its owner has access", folder)
        for path in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # a temporary file that was removed
                restrict(path)
    except OSError as e:
        remedy = "" if os.geteuid() == 0 else "Run this as root"
        raise errors.Unusable(str(folder), f"cannot be made private: {e.strerror}", remedy) from e


def restrict(path: pathlib.Path) -> bool:
    """Remove rights of group and others, or raise OSError; return whether there were any."""
    found = path.lstat()
    is_wide = not stat.S_ISLNK(found.st_mode) and found.st_mode & 0o077 != 0
    if is_wide:
        path.chmod(stat.S_IMODE(found.st_mode) & 0o700)
    return is_wide


@contextlib.contextmanager
def lock_folders(folders: list[pathlib.Path]) -> Iterator[None]:
    """Create private folders and lock them against other agents, or raise Unusable.

    A worker inherits the locks, and keeps them if its supervisor is killed. An orderly end releases
    them for all processes.
    """
    with contextlib.ExitStack() as stack:
        locks = []
        for folder in folders:
            try:
                lock = stack.enter_context(_open_lock(folder))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.set_inheritable(lock.fileno(), True)
                locks.append(lock)
            except BlockingIOError as e:
                raise errors.Unusable(
                    str(folder), "another agent uses it", "Set different folders for each agent"
                ) from e
        yield
        for lock in locks:
            fcntl.flock(lock, fcntl.LOCK_UN)


def _open_lock(folder: pathlib.Path) -> IO[str]:
    make_private(folder)
    path = folder / ".lock"
    try:
        return path.open("a+")
    except OSError as e:
        if path.exists():
            with contextlib.suppress(OSError):
                return path.open()
        raise errors.Unusable(str(folder), f"cannot be used: {e.strerror}") from e
