# SPDX-License-Identifier: Apache-2.0
"""Folders of the agent: made, closed to others, and locked against other agents.

What is kept is for its owner alone, and one agent alone works in a folder.
"""

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
    """Make a folder, and those above it, where they are missing; others may pass through them.

    :raises errors.Unusable: it cannot be made
    """
    try:
        with umask(0o022):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        if e.errno != errno.ENOTCONN:  # a dead mount; it is cleared when the agent mounts
            raise errors.Unusable(str(folder), f"cannot be made: {e.strerror}") from e


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    """Make files and folders without these bits; only while there is one thread."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def make_private(folder: pathlib.Path) -> None:
    """Make a folder that only its owner may enter; close one that others may enter.

    So are the files and folders right in it: what lies deeper cannot be reached by others, and
    the modes of disks are what guests see.

    :raises errors.Unusable: it cannot be made or closed
    """
    make_folder(folder.parent)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if narrow(folder):
            LOG.info("%s was open to others; now only its owner may enter", folder)
        for path in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # a temporary file that is gone by now
                narrow(path)
    except OSError as e:
        remedy = "" if os.geteuid() == 0 else "Run this as root"
        raise errors.Unusable(str(folder), f"cannot be made private: {e.strerror}", remedy) from e


def narrow(path: pathlib.Path) -> bool:
    """Take all rights of others and of the group from a file or folder; say if there were any.

    :raises OSError: that cannot be done
    """
    found = path.lstat()
    is_wide = not stat.S_ISLNK(found.st_mode) and found.st_mode & 0o077 != 0
    if is_wide:
        path.chmod(stat.S_IMODE(found.st_mode) & 0o700)
    return is_wide


@contextlib.contextmanager
def lock_folders(folders: list[pathlib.Path]) -> Iterator[None]:
    """Make the folders, private ones, and keep other agents away from them.

    A worker has the locks, too, and keeps them when its supervisor is killed.  After an end in
    good order nobody keeps them, not even a worker that the kernel does not let go.

    :raises errors.Unusable: another agent uses a folder, or it cannot be made or locked
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
                    str(folder), "another agent uses it", "Give each agent folders of its own"
                ) from e
        yield
        for lock in locks:
            fcntl.flock(lock, fcntl.LOCK_UN)


def _open_lock(folder: pathlib.Path) -> IO[str]:
    """Return the lock file of a folder; one that is there can be locked without being written."""
    make_private(folder)
    path = folder / ".lock"
    try:
        return path.open("a+")
    except OSError as e:
        if path.exists():
            with contextlib.suppress(OSError):
                return path.open()
        raise errors.Unusable(str(folder), f"cannot be used: {e.strerror}") from e
