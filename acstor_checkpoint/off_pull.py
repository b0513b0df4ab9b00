# SPDX-License-Identifier: Apache-2.0
"""Pulls what a checkpoint has into the disk of a server that is off, which may start at any time.

A copy of the disk is made, what it lies on is copied into that by qemu-img, and it takes the
disk's place.  So nobody who starts the server meanwhile finds its disk in use: the copy is thrown
away then.  Only for the moment of the exchange the disk is locked, as QEMU locks it, so that no
QEMU goes on with a file that is not the server's any more.

Whatever was written to the disk since the copy began, the copy is not used.
"""

import contextlib
import fcntl
import os
import pathlib
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Final
from typing import NamedTuple

from acstor_checkpoint import overlay
from acstor_common import errors
from acstor_common import local_file

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


class OffDisk(NamedTuple):
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


class Puller:
    """Does it.

    :param ended: set: nothing is begun any more, and what is on is broken off
    """

    def __init__(self, ended: threading.Event) -> None:
        self._ended = ended

    def __call__(self, disk: OffDisk, is_off: Callable[[], bool]) -> None:
        """Pull all of it.

        :raises errors.Unusable: it was not done: the server was started, or there is no room
        """
        copy = _copy_of(disk.path)
        before = overlay.stamp(disk.path)
        with _removed(copy):
            _check_room(disk)
            overlay.check(disk.path, local_file.backing_of, disk.shown)
            flags = ["--reflink=auto", "--sparse=always", "--preserve=all"]
            self._run(["cp", *flags, disk.path, copy], is_off)
            overlay.check(copy, local_file.backing_of, disk.shown)
            rebase = ["qemu-img", "rebase", "-f", "qcow2", "-F", "raw", "-b", disk.base]
            self._run([*rebase, copy], is_off)
            if local_file.backing_of(copy) != disk.base:
                raise errors.Unusable(copy, "qemu-img has not laid it on the mirror")
            self._run(["sync", copy], is_off)
            with _locked(disk.path):
                if overlay.stamp(disk.path) != before or not is_off():
                    raise errors.Unusable(disk.path, "somebody uses it; it is tried again")
                _exchange(copy, disk.path)
                time.sleep(_HELD_S)

    def _run(self, argv: Sequence[str], is_off: Callable[[], bool]) -> None:
        """Run a tool to its end, unless the server is started or room gets short.

        :param argv: ends with the file that it writes
        :raises errors.Unusable: it has failed, or was ended
        """
        with _tool(argv) as tool:
            while tool.poll() is None:
                if self._ended.wait(_LOOK_EVERY_S) or not is_off():
                    raise errors.Unusable(argv[-1], "the server is started, or this daemon ends")
                _check_free(argv[-1], 0)
            if tool.returncode:
                why = tool.stderr.read(4096).decode(errors="replace") if tool.stderr else ""
                raise errors.Unusable(argv[0], why.strip())


def lay_on(path: str, checkpoint: str, base: str) -> None:
    """Lay a disk that has lost some of a checkpoint on that again; nobody has it open.

    :param base: what it lies on now, as its header says it
    :raises errors.Unusable: somebody has it open, or it lies on something else
    """
    overlay.check(path, local_file.backing_of, base)
    argv = ["qemu-img", "rebase", "-u", "-f", "qcow2", "-F", "qcow2", "-b", checkpoint, path]
    try:
        subprocess.run(argv, check=True, capture_output=True, timeout=_LAY_S)
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


def make_safe(path: str) -> None:
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
def _tool(argv: Sequence[str]) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a tool, for the block at most.

    :raises errors.Unusable: it cannot be, or does not end
    """
    try:
        tool = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
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


def _check_room(disk: OffDisk) -> None:
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


def _exchange(copy: str, path: str) -> None:
    try:
        os.rename(copy, path)
        folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as e:  # Nova has moved or deleted the server
        raise errors.Unusable(path, str(e)) from e


@contextlib.contextmanager
def _removed(path: str) -> Iterator[None]:
    """Have no such file before the block, and after it."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Keep every QEMU off a file for the block.

    :raises errors.Unusable: one has it
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as e:
        raise errors.Unusable(path, str(e)) from e
    try:
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _LOCK)
        except OSError as e:
            raise errors.Unusable(path, "somebody uses it; it is tried again") from e
        yield
    finally:
        os.close(fd)
