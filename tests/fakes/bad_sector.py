# SPDX-License-Identifier: Apache-2.0
"""A file with a bad sector, through the page cache: a FUSE file system in its own process."""

import contextlib
import errno
import os
import pathlib
import stat
import subprocess
import sys
from collections.abc import Iterator

import pyfuse3
import trio

from tests.fakes import fuse_loop

ROOT = pathlib.Path(__file__).resolve().parents[2]
_FILE = pyfuse3.InodeT(2)  # any name below the mount point leads to it


class _Server(pyfuse3.Operations):
    def __init__(self, data: bytes, bad: int) -> None:
        super().__init__()
        self._data, self._bad = data, bad

    async def getattr(self, inode, ctx=None):
        entry = pyfuse3.EntryAttributes()
        entry.st_ino, entry.st_nlink = inode, 1
        is_file = inode == _FILE
        entry.st_mode = stat.S_IFREG | 0o444 if is_file else stat.S_IFDIR | 0o555
        entry.st_size = len(self._data) if is_file else 0
        return entry

    async def lookup(self, parent_inode, name, ctx=None):
        return await self.getattr(_FILE)

    async def open(self, inode, flags, ctx):
        return pyfuse3.FileInfo(fh=inode)

    async def read(self, fh, off, size):
        if off <= self._bad < off + size:
            raise pyfuse3.FUSEError(errno.EIO)
        return self._data[off : off + size]


@contextlib.contextmanager
def shown(file: pathlib.Path, offset: int, mount_point: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield a path of a file whose byte at ``offset`` cannot be read."""
    mount_point.mkdir()
    words = [sys.executable, "-m", "tests.fakes.bad_sector", str(file), str(offset)]
    with subprocess.Popen([*words, str(mount_point)], cwd=ROOT, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield mount_point / file.name
        finally:
            server.terminate()  # it unmounts


async def _serve(data: bytes, bad: int, mount_point: str) -> None:
    pyfuse3.init(_Server(data, bad), mount_point, {"fsname=bad-sector"})
    os.write(1, b"ready\n")
    await fuse_loop.answer_until_stopped()


if __name__ == "__main__":
    trio.run(_serve, pathlib.Path(sys.argv[1]).read_bytes(), int(sys.argv[2]), sys.argv[3])
