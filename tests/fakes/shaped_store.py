# SPDX-License-Identifier: Apache-2.0
"""A FUSE file system on modelled devices: ``python -m`` this, ``PLAN``.

PLAN is a JSON file::

    {"devices": {"images": "hdd"}, "mount_point": "/…", "report": "/…",
     "files": [{"name": "a.raw", "path": "/…", "at": 0, "device": "images", "is_written": false}]}

All files are in one folder; ``path`` has a file's bytes.  Several files may share a path, each at
another offset of a device.  A file without a device has no delay.  The kernel uses page cache
and read-ahead as on a disk; writes are written through.  At SIGTERM it writes the devices'
request counters to the file ``report``.
"""

import dataclasses
import errno
import json
import os
import pathlib
import stat
import sys
from typing import Any

import pyfuse3
import trio

from tests.fakes import fuse_loop
from tests.fakes import shaped_devices

KEPT_S = 300.0
FIRST_INODE = 2


@dataclasses.dataclass
class File:
    """A file of the plan."""

    fd: int
    at: int
    device: shaped_devices.Device | None
    is_written: bool


@dataclasses.dataclass
class Report:
    """Requests to the devices."""

    reads: int = 0
    read_bytes: int = 0
    writes: int = 0
    written_bytes: int = 0


class Store(pyfuse3.Operations):
    """A folder of files on devices."""

    enable_writeback_cache = False

    def __init__(self, files: dict[str, File]) -> None:
        super().__init__()
        self.report = Report()
        self._files = list(files.values())
        self._inodes = {name.encode(): number + FIRST_INODE for number, name in enumerate(files)}

    def _file(self, inode: int) -> File:
        return self._files[inode - FIRST_INODE]

    async def getattr(self, inode, ctx=None):
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = inode
        entry.st_mode = stat.S_IFDIR | 0o755
        if inode >= FIRST_INODE:
            entry.st_mode = stat.S_IFREG | 0o644
            entry.st_size = os.fstat(self._file(inode).fd).st_size
        entry.st_nlink = 1
        entry.entry_timeout = entry.attr_timeout = KEPT_S
        return entry

    async def lookup(self, parent_inode, name, ctx):
        if name not in self._inodes:
            raise pyfuse3.FUSEError(errno.ENOENT)
        return await self.getattr(self._inodes[name])

    async def setattr(self, inode, attr, fields, fh, ctx):
        if fields.update_size:
            os.ftruncate(self._file(inode).fd, attr.st_size)
        return await self.getattr(inode)

    async def open(self, inode, flags, ctx):
        return pyfuse3.FileInfo(fh=inode, keep_cache=True)

    async def read(self, fh, off, size):
        file = self._file(fh)
        data = os.pread(file.fd, size, off)
        if file.device is not None and data:
            self.report.reads += 1
            self.report.read_bytes += len(data)
            await file.device.use(file.at + off, len(data))
        return data

    async def write(self, fh, off, buf):
        file = self._file(fh)
        if file.device is not None:
            self.report.writes += 1
            self.report.written_bytes += len(buf)
            await file.device.use(file.at + off, len(buf))
        return os.pwrite(file.fd, buf, off)

    async def fsync(self, fh, datasync):
        """Do nothing: writes are written through."""

    async def flush(self, fh):
        """Do nothing: writes are written through."""

    async def release(self, fh):
        """Do nothing: open files have no state."""


async def serve(plan: dict[str, Any]) -> dict[str, int]:
    """Serve the files of a plan until SIGTERM; return the request counters."""
    devices = {name: shaped_devices.KINDS[kind]() for name, kind in plan["devices"].items()}
    files = {
        one["name"]: File(
            os.open(one["path"], os.O_RDWR if one["is_written"] else os.O_RDONLY),
            one["at"],
            devices.get(one["device"]),
            one["is_written"],
        )
        for one in plan["files"]
    }
    store = Store(files)
    options = {*pyfuse3.default_options, "fsname=shaped", "allow_other"}
    pyfuse3.init(store, plan["mount_point"], options)
    await fuse_loop.answer_until_stopped()
    return dataclasses.asdict(store.report)


def main() -> int:
    """Serve the files of the plan in the argument."""
    plan = json.loads(pathlib.Path(sys.argv[1]).read_text())
    report = trio.run(serve, plan)
    pathlib.Path(plan["report"]).write_text(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
