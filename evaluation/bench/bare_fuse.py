# SPDX-License-Identifier: Apache-2.0
"""The floor of P5 and P6a: pyfuse3 serving one file with os.pread.

``python -m evaluation.bench.bare_fuse FILE MOUNT_POINT`` shows FILE as
``MOUNT_POINT/file`` until SIGTERM, without cache, map or check.  No file system on pyfuse3 and
trio can be much faster.
"""

import errno
import os
import stat
import sys

import pyfuse3
import trio

from tests.fakes import fuse_loop

FILE_INODE = pyfuse3.InodeT(2)


class OneFile(pyfuse3.Operations):
    """A folder with one file in it."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd

    async def getattr(self, inode, ctx=None):
        entry = pyfuse3.EntryAttributes()
        is_file = inode == FILE_INODE
        entry.st_mode = stat.S_IFREG | 0o444 if is_file else stat.S_IFDIR | 0o555
        entry.st_size = os.fstat(self._fd).st_size if is_file else 0
        entry.st_ino = inode
        entry.entry_timeout = entry.attr_timeout = 300
        return entry

    async def lookup(self, parent_inode, name, ctx):
        if name != b"file":
            raise pyfuse3.FUSEError(errno.ENOENT)
        return await self.getattr(FILE_INODE)

    async def open(self, inode, flags, ctx):
        return pyfuse3.FileInfo(fh=FILE_INODE, keep_cache=True)

    async def read(self, fh, off, size):
        return os.pread(self._fd, size, off)


async def serve(path: str, mount_point: str) -> None:
    pyfuse3.init(OneFile(os.open(path, os.O_RDONLY)), mount_point)
    await fuse_loop.answer_until_stopped()


if __name__ == "__main__":
    trio.run(serve, sys.argv[1], sys.argv[2])
