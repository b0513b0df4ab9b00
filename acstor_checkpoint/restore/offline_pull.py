# SPDX-License-Identifier: Apache-2.0
"""Pulls a checkpoint's data into the disk of a powered-off server.

It copies the disk, rebases the copy with qemu-img, and replaces the disk by it under QEMU's locks,
so that no QEMU opens the old file.  The server can start at any time: if the disk was written, the
copy is discarded.

Nova owns the folder, and the tools run as root.  So they get open descriptors, not paths: symbolic
links have no effect.  Only root can access the copy until it is complete, so its header cannot
change between check and use.
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
from acstor_common.disks import local_file
from acstor_common.util import atomic_file

COPY_ENDING: Final = ".acstor-pull"
_LOOK_EVERY_S: Final = 0.2
_LAY_S: Final = 30.0
_KILL_S: Final = 10.0
_SPARE_BYTES: Final = 1 << 30
_HELD_S: Final = 1.0  # a QEMU that opened the disk before the replacement requests its lock within
_LOCK: Final = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 100, 200, 0)
"""Bytes of QEMU's locks (its block/file-posix.c)."""


class OfflineDisk(NamedTuple):
    """The disk of a powered-off server."""

    path: str
    base: str  # new raw backing file
    current_base: str  # current backing file, according to the header
    data_file: pathlib.Path  # file with the data between both


class OfflinePull:
    """Pulls offline disks.

    :param spare_bytes: space to leave free: running guests pause if their disks cannot grow
    :param kill_s: timeout of a killed tool
    """

    def __init__(
        self, ended: threading.Event, spare_bytes: int = _SPARE_BYTES, kill_s: float = _KILL_S
    ) -> None:
        self._ended, self._spare_bytes, self._kill_s = ended, spare_bytes, kill_s

    def __call__(self, disk: OfflineDisk, is_powered_off: Callable[[], bool]) -> None:
        """Pull all data of a disk; Unusable if the server was started or space is short."""
        copy = _copy_of(disk.path)
        before = overlay.stamp(disk.path)
        with overlay.open_file(disk.path, os.O_RDONLY) as source, _made(copy) as made:
            self._check_room(disk)
            overlay.check_backing_file(source, disk.path, disk.current_base)
            flags = ["--reflink=auto", "--sparse=always"]
            self._run(
                ["cp", *flags, local_file.path_of(source)], made, copy, is_powered_off, source
            )
            overlay.check_backing_file(made, copy, disk.current_base)
            rebase = ["qemu-img", "rebase", "-f", "qcow2", "-F", "raw", "-b", disk.base]
            self._run(rebase, made, copy, is_powered_off)
            if local_file.backing_of(local_file.path_of(made)) != disk.base:
                raise errors.Unusable(copy, "qemu-img did not rebase it to the mirror")
            _give_attributes(source, made, copy)
            self._run(["sync"], made, copy, is_powered_off)
            with _locked(disk.path):
                if overlay.stamp(disk.path) != before or not is_powered_off():
                    raise errors.Unusable(disk.path, "it is in use; retrying")
                _exchange(made, copy, disk.path)
                time.sleep(_HELD_S)

    def _run(
        self,
        argv: Sequence[str],
        fd: int,
        path: str,
        is_powered_off: Callable[[], bool],
        *more: int,
    ) -> None:
        """Run a tool, with ``fd`` as output; Unusable if the server starts or space gets short."""
        with _tool([*argv, local_file.path_of(fd)], (fd, *more), self._kill_s) as tool:
            while tool.poll() is None:
                if self._ended.wait(_LOOK_EVERY_S) or not is_powered_off():
                    raise errors.Unusable(path, "the server is started, or this daemon stops")
                self._check_free(path, 0)
            if tool.returncode:
                why = tool.stderr.read(4096).decode(errors="replace") if tool.stderr else ""
                raise errors.Unusable(argv[0], why.strip())

    def _check_room(self, disk: OfflineDisk) -> None:
        try:
            needed = sum(os.stat(path).st_blocks * 512 for path in (disk.path, disk.data_file))
        except OSError as e:
            raise errors.Unusable(disk.path, str(e)) from e
        self._check_free(disk.path, needed)

    def _check_free(self, path: str, needed: int) -> None:
        try:
            free = os.statvfs(os.path.dirname(path))
        except OSError as e:
            raise errors.Unusable(path, str(e)) from e
        if free.f_bavail * free.f_frsize < needed + self._spare_bytes:
            spare = self._spare_bytes
            why = f"its copy needs {needed} bytes more, and {spare} must stay free beside it"
            raise errors.Unusable(path, why)


def rebase(path: str, checkpoint: str, base: str) -> None:
    """Change a disk's backing file from ``base`` back to the checkpoint.

    :raises errors.Unusable: the disk is open, or has another backing file than ``base``
    """
    with overlay.open_file(path, os.O_RDWR) as fd:
        overlay.check_backing_file(fd, path, base)
        argv = ["qemu-img", "rebase", "-u", "-f", "qcow2", "-F", "qcow2", "-b", checkpoint]
        argv.append(local_file.path_of(fd))
        try:
            subprocess.run(argv, check=True, capture_output=True, timeout=_LAY_S, pass_fds=[fd])
        except subprocess.CalledProcessError as e:
            raise errors.Unusable(path, e.stderr.decode(errors="replace").strip()[:500]) from e
        except (OSError, subprocess.TimeoutExpired) as e:
            raise errors.Unusable(path, str(e)) from e


def remove_copy(path: str) -> None:
    """Remove the copy that a killed pull left, or raise OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_copy_of(path))


def sync_file(path: str) -> None:
    """Sync a file, or raise OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _copy_of(path: str) -> str:
    return f"{path}{COPY_ENDING}"


@contextlib.contextmanager
def _tool(
    argv: Sequence[str], fds: Collection[int], kill_s: float
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a tool with these descriptors, at most for the block, or raise Unusable."""
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
            tool.wait(kill_s)
        except subprocess.TimeoutExpired as e:  # hung in the file system
            raise errors.Unusable(argv[0], f"it was killed, but does not exit: {e}") from e


def _give_attributes(source: int, made: int, path: str) -> None:
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
        atomic_file.sync_folder(pathlib.Path(path).parent)
    except OSError as e:  # Nova moved or deleted the server
        raise errors.Unusable(path, str(e)) from e


@contextlib.contextmanager
def _made(path: str) -> Iterator[int]:
    """Create a private file for the block; Unusable if it cannot be created."""
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
    """Lock a file against QEMU for the block; Unusable if it is in use."""
    with overlay.open_file(path, os.O_RDWR) as fd:
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _LOCK)
        except OSError as e:
            raise errors.Unusable(path, "it is in use; retrying") from e
        yield
