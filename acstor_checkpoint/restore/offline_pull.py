# SPDX-License-Identifier: Apache-2.0
"""Pulls what a checkpoint has into the disk of a server that is off, which may start at any time.

A copy of the disk is made, what it lies on is copied into that by qemu-img, and it takes the
disk's place.  So nobody who starts the server meanwhile finds its disk in use: the copy is thrown
away then.  Only for the moment of the exchange the disk is locked, as QEMU locks it, so that no
QEMU goes on with a file that is not the server's any more.

Whatever was written to the disk since the copy began, the copy is not used.

The folder is Nova's, and the tools run as root.  So they get open files, not names: a link that
is put in the place of the disk or of its copy leads nowhere.  The copy is root's until it is
complete, so nobody changes its header between a check and a tool.
"""

import contextlib
import fcntl
import os
import pathlib
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Final
from typing import NamedTuple

from acstor_checkpoint.capture import overlay
from acstor_common import errors
from acstor_common.formats import local_file

COPY_ENDING: Final = ".acstor-pull"
_LOOK_EVERY_S: Final = 0.2
_LAY_S: Final = 30.0
_ENDS_S: Final = 10.0
"""A tool that was killed."""
_SPARE_BYTES: Final = 1 << 30
"""Stays free: running guests stop where their disks cannot grow."""
_HELD_S: Final = 1.0
"""Who opened the disk just before it was exchanged has asked for its lock by then."""
_LOCK: Final = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 100, 200, 0)
"""All bytes that QEMU locks of a file to say what it does with it (its block/file-posix.c)."""


class OfflineDisk(NamedTuple):
    """The disk of a server that is off.

    :param path: of the overlay
    :param base: what it is to lie on, raw
    :param shown: what it lies on now, as its header says it
    :param beneath: the file that has what lies between both
    """

    path: str
    base: str
    shown: str
    beneath: pathlib.Path


class OfflinePull:
    """Does it.

    :param ended: set: nothing is begun any more, and what is on is broken off
    """

    def __init__(self, ended: threading.Event) -> None:
        self._ended = ended

    def __call__(self, disk: OfflineDisk, is_off: Callable[[], bool]) -> None:
        """Pull all of it.

        :raises errors.Unusable: it was not done: the server was started, or there is no room
        """
        copy = _copy_of(disk.path)
        before = overlay.stamp(disk.path)
        with overlay.open_file(disk.path, os.O_RDONLY) as source, _made(copy) as made:
            _check_room(disk)
            overlay.check_opened(source, disk.path, disk.shown)
            flags = ["--reflink=auto", "--sparse=always"]
            self._run(["cp", *flags, local_file.path_of(source)], made, copy, is_off, source)
            overlay.check_opened(made, copy, disk.shown)
            rebase = ["qemu-img", "rebase", "-f", "qcow2", "-F", "raw", "-b", disk.base]
            self._run(rebase, made, copy, is_off)
            if local_file.backing_of(local_file.path_of(made)) != disk.base:
                raise errors.Unusable(copy, "qemu-img has not laid it on the mirror")
            _give_attributes(source, made, copy)
            self._run(["sync"], made, copy, is_off)
            with _locked(disk.path):
                if overlay.stamp(disk.path) != before or not is_off():
                    raise errors.Unusable(disk.path, "it is in use; retrying")
                _exchange(made, copy, disk.path)
                time.sleep(_HELD_S)

    def _run(
        self, argv: Sequence[str], fd: int, path: str, is_off: Callable[[], bool], *more: int
    ) -> None:
        """Run a tool to its end, unless the server is started or room gets short.

        :param argv: without the file that it writes, which comes last
        :param fd: that file
        :param path: of it
        :param more: descriptors that the tool needs
        :raises errors.Unusable: it has failed, or was ended
        """
        with _tool([*argv, local_file.path_of(fd)], (fd, *more)) as tool:
            while tool.poll() is None:
                if self._ended.wait(_LOOK_EVERY_S) or not is_off():
                    raise errors.Unusable(path, "the server is started, or this daemon ends")
                _check_free(path, 0)
            if tool.returncode:
                why = tool.stderr.read(4096).decode(errors="replace") if tool.stderr else ""
                raise errors.Unusable(argv[0], why.strip())


def rebase(path: str, checkpoint: str, base: str) -> None:
    """Lay a disk that has lost some of a checkpoint on that again; nobody has it open.

    :param base: what it lies on now, as its header says it
    :raises errors.Unusable: somebody has it open, or it lies on something else
    """
    with overlay.open_file(path, os.O_RDWR) as fd:
        overlay.check_opened(fd, path, base)
        argv = ["qemu-img", "rebase", "-u", "-f", "qcow2", "-F", "qcow2", "-b", checkpoint]
        argv.append(local_file.path_of(fd))
        try:
            subprocess.run(argv, check=True, capture_output=True, timeout=_LAY_S, pass_fds=[fd])
        except subprocess.CalledProcessError as e:
            raise errors.Unusable(path, e.stderr.decode(errors="replace").strip()[:500]) from e
        except (OSError, subprocess.TimeoutExpired) as e:
            raise errors.Unusable(path, str(e)) from e


def remove_copy(path: str) -> None:
    """Remove the copy of a disk that is left of a pull that was killed; none is on.

    :raises OSError: it cannot be
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_copy_of(path))


def sync_file(path: str) -> None:
    """Have what the kernel has of a file written to the host's disk.

    :raises OSError: it cannot be
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _copy_of(path: str) -> str:
    return f"{path}{COPY_ENDING}"


@contextlib.contextmanager
def _tool(argv: Sequence[str], fds: Collection[int]) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a tool with these descriptors, for the block at most.

    :raises errors.Unusable: it cannot be, or does not end
    """
    try:
        tool = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, pass_fds=tuple(fds)
        )
    except OSError as e:
        raise errors.Unusable(argv[0], str(e)) from e
    try:
        yield tool
    finally:
        tool.kill()
        if tool.stderr is not None:
            tool.stderr.close()
        try:
            tool.wait(_ENDS_S)
        except subprocess.TimeoutExpired as e:  # the file system does not answer
            raise errors.Unusable(argv[0], f"it was killed, and does not end: {e}") from e


def _check_room(disk: OfflineDisk) -> None:
    try:
        needed = sum(os.stat(path).st_blocks * 512 for path in (disk.path, disk.beneath))
    except OSError as e:
        raise errors.Unusable(disk.path, str(e)) from e
    _check_free(disk.path, needed)


def _check_free(path: str, needed: int) -> None:
    try:
        free = os.statvfs(os.path.dirname(path))
    except OSError as e:
        raise errors.Unusable(path, str(e)) from e
    if free.f_bavail * free.f_frsize < needed + _SPARE_BYTES:
        why = f"its copy needs {needed} bytes more, and {_SPARE_BYTES} are to stay free beside it"
        raise errors.Unusable(path, why)


def _give_attributes(source: int, made: int, path: str) -> None:
    """Give a copy the owner, mode, times and attributes of what it was made of."""
    try:
        status = os.fstat(source)
        os.fchown(made, status.st_uid, status.st_gid)
        shutil.copystat(local_file.path_of(source), local_file.path_of(made))
    except OSError as e:
        raise errors.Unusable(path, str(e)) from e


def _exchange(made: int, copy: str, path: str) -> None:
    try:
        if not os.path.samestat(os.lstat(copy), os.fstat(made)):
            raise errors.Unusable(copy, "it is in use; retrying")
        os.rename(copy, path)
        folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as e:  # Nova has moved or deleted the server
        raise errors.Unusable(path, str(e)) from e


@contextlib.contextmanager
def _made(path: str) -> Iterator[int]:
    """Have a new file that nobody else may open, and none after the block.

    :raises errors.Unusable: it cannot be made
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as e:
        raise errors.Unusable(path, str(e)) from e
    try:
        yield fd
    finally:
        os.close(fd)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Keep every QEMU off a file for the block.

    :raises errors.Unusable: one has it
    """
    with overlay.open_file(path, os.O_RDWR) as fd:
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _LOCK)
        except OSError as e:
            raise errors.Unusable(path, "it is in use; retrying") from e
        yield
