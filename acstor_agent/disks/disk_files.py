# SPDX-License-Identifier: Apache-2.0
"""The files of a disk (``doc/source/format/disk.rst``): sparse data, and a mark for each chunk."""

import contextlib
import logging
import os
import pathlib
from collections.abc import Iterable
from collections.abc import Sequence

from acstor_agent.core.disks import disk_header
from acstor_common import errors
from acstor_common.util import atomic_file

LOG = logging.getLogger(__name__)

DATA_ENDING = ".data"
STATE_ENDING = ".acdisk"
FAILED_ENDING = ".sync-failed"  # marker file: a sync failed, and the lost bytes are unknown
_INCOMING = ".incoming-"


class DiskFiles:
    """The two files of one disk; blocks. ``boot_id`` identifies the host's boot (16 bytes).

    :raises errors.FormatError: a file is damaged, missing or not of this disk
    """

    def __init__(self, folder: pathlib.Path, disk_id: disk_header.DiskId, boot_id: bytes) -> None:
        self._path = state_path(folder, disk_id)
        self.failed_path = _failed_path(folder, disk_id)
        with contextlib.ExitStack() as opened:
            self._state_fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            opened.callback(os.close, self._state_fd)
            self.header, marks, former_boot_id = self._read_state(disk_id)
            self.data_fd = self._open_data(data_path(folder, disk_id))
            opened.callback(os.close, self.data_fd)
            self.written = list(disk_header.marked(marks, disk_header.WRITTEN))
            self.unsynced = list(disk_header.marked(marks, disk_header.UNSYNCED))
            if boot_id != former_boot_id:
                self._begin_boot(boot_id)
            opened.pop_all()

    def _read_state(
        self, disk_id: disk_header.DiskId
    ) -> tuple[disk_header.DiskHeader, bytes, bytes]:
        what = str(self._path)
        raw = os.pread(self._state_fd, disk_header.AT_MARKS, 0)
        header, boot_id = disk_header.unpack(raw, what)
        if header.disk_id != disk_id:
            raise errors.FormatError(what, 0, f"this is the state of disk {header.disk_id}")
        if os.fstat(self._state_fd).st_size != header.file_bytes:
            raise errors.FormatError(what, 0, f"{header.file_bytes} bytes are expected")
        marks = os.pread(self._state_fd, header.cut.chunk_count, disk_header.AT_MARKS)
        disk_header.check_marks(marks, header, what)
        return header, marks, boot_id

    def _open_data(self, path: pathlib.Path) -> int:
        size_bytes = self.header.cut.size_bytes
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError as e:
            raise errors.FormatError(str(path), 0, "written data is missing") from e
        if os.fstat(fd).st_size != size_bytes:
            os.close(fd)
            raise errors.FormatError(str(path), 0, f"{size_bytes} bytes are expected")
        return fd

    def _begin_boot(self, boot_id: bytes) -> None:
        """Drop chunks that were unsynced when the host went down, marks first."""
        if self.unsynced:
            LOG.warning(
                "disk %s: %d chunks were not synced when the host went down; they revert to the "
                "image",
                self.header.disk_id,
                len(self.unsynced),
            )
        self._mark(disk_header.runs(self.unsynced), disk_header.UNWRITTEN)
        os.fdatasync(self._state_fd)
        os.pwrite(self._state_fd, boot_id, disk_header.AT_BOOT_ID)
        os.fdatasync(self._state_fd)
        self.unsynced = []

    def _mark(self, runs: Iterable[tuple[int, int]], mark: int) -> None:
        for first, count in runs:
            _write_all(self._state_fd, [bytes([mark]) * count], disk_header.AT_MARKS + first)

    def read(self, into: memoryview, offset: int) -> None:
        """Fill ``into`` with the data at ``offset``."""
        if os.preadv(self.data_fd, [into], offset) != len(into):
            raise errors.FormatError(str(self._path), offset, "written data is truncated")

    def read_nowait(self, into: memoryview, offset: int) -> bool:
        """Do as :meth:`read` if that needs no wait; otherwise return False."""
        try:
            return os.preadv(self.data_fd, [into], offset, os.RWF_NOWAIT) == len(into)
        except OSError:
            return False

    def write(
        self, parts: list[bytes | bytearray], offset: int, fresh: Iterable[tuple[int, int]]
    ) -> None:
        """Write ``parts`` back to back, then mark the fresh runs of chunks."""
        _write_all(self.data_fd, parts, offset)
        self._mark(fresh, disk_header.UNSYNCED)

    def sync(self, unsynced: Iterable[tuple[int, int]]) -> None:
        """Sync the data, then the marks of these runs of chunks."""
        os.fdatasync(self.data_fd)
        self._mark(unsynced, disk_header.WRITTEN)
        os.fdatasync(self._state_fd)

    def has_failed(self) -> bool:
        """Return whether a sync failed, in this worker or a former one."""
        return self.failed_path.exists()

    def note_failure(self) -> None:
        """Record durably that a sync failed; raise OSError if a reboot may lose the record."""
        self.failed_path.touch(0o600)
        atomic_file.sync_folder(self.failed_path.parent)

    def close(self) -> None:
        """Close both files, and forget the descriptors, which are soon reused."""
        fds, self.data_fd, self._state_fd = (self.data_fd, self._state_fd), -1, -1
        for fd in fds:
            os.close(fd)


def header_of(folder: pathlib.Path, disk_id: disk_header.DiskId) -> disk_header.DiskHeader:
    """Return the header of a disk, without opening it, or raise OSError or FormatError."""
    path = state_path(folder, disk_id)
    with path.open("rb") as file:
        return disk_header.unpack(file.read(disk_header.AT_MARKS), str(path))[0]


def state_path(folder: pathlib.Path, disk_id: disk_header.DiskId) -> pathlib.Path:
    """Return the path of the state file; a disk exists while it does."""
    return folder / f"{disk_id}{STATE_ENDING}"


def data_path(folder: pathlib.Path, disk_id: disk_header.DiskId) -> pathlib.Path:
    """Return the path of the data file."""
    return folder / f"{disk_id}{DATA_ENDING}"


def _failed_path(folder: pathlib.Path, disk_id: disk_header.DiskId) -> pathlib.Path:
    return folder / f"{disk_id}{FAILED_ENDING}"


def create(
    folder: pathlib.Path,
    header: disk_header.DiskHeader,
    boot_id: bytes,
    beginning: Iterable[bytes] = (),
) -> None:
    """Create a disk's files atomically; ``beginning``: the first chunks' bytes, in parts.

    :raises errors.Unusable: the disk exists, or data of a lost one
    """
    data, state = data_path(folder, header.disk_id), state_path(folder, header.disk_id)
    incoming = folder / f"{_INCOMING}{header.disk_id}"
    if state.exists():
        raise errors.Unusable(f"disk {header.disk_id}", "exists already")
    if data.exists() and data.stat().st_blocks:
        raise errors.Unusable(
            str(data),
            "has data of a disk whose state is lost",
            "Delete or rename it if it is not needed",
        )
    try:
        with open(os.open(data, os.O_RDWR | os.O_CREAT, 0o600), "rb+") as file:
            begun = sum(map(file.write, beginning)) // header.cut.chunk_bytes
            file.flush()
            file.truncate(header.cut.size_bytes)
            os.fsync(file.fileno())
        with incoming.open("wb") as file:
            file.write(disk_header.pack(header, boot_id) + bytes([disk_header.WRITTEN]) * begun)
            file.flush()
            os.posix_fallocate(file.fileno(), 0, header.file_bytes)
            os.fsync(file.fileno())
        incoming.rename(state)
    except OSError:
        incoming.unlink(missing_ok=True)
        data.unlink(missing_ok=True)
        raise
    atomic_file.sync_folder(folder)


def remove(folder: pathlib.Path, disk_id: disk_header.DiskId) -> None:
    """Delete the files of a disk; can be repeated after a kill."""
    data_path(folder, disk_id).unlink(missing_ok=True)
    _failed_path(folder, disk_id).unlink(missing_ok=True)
    state_path(folder, disk_id).unlink()
    atomic_file.sync_folder(folder)


def _write_all(fd: int, parts: Sequence[bytes | bytearray], offset: int) -> None:
    done, length = os.pwritev(fd, parts, offset), sum(map(len, parts))
    while done < length:  # cut short: the next write raises the reason
        done += os.pwrite(fd, b"".join(parts)[done:], offset + done)
