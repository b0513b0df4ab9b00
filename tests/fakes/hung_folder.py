# SPDX-License-Identifier: Apache-2.0
"""A folder on a hanging file server: a small FUSE file system in its own process.

    python -m tests.fakes.hung_folder FOLDER MOUNT_POINT

It shows the files of a folder, read-only.  Stopped (SIGSTOP), it imitates a frozen file server:
calls wait in the kernel, and SIGKILL ends them.  After SIGUSR1 it takes requests without a
reply until SIGUSR2.  Callers then ignore even SIGKILL (state D), as with a file server that
hangs in the middle of a call.

The process dies with its parent; the kernel then ends all calls that wait for it.
"""

import contextlib
import errno
import os
import pathlib
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from collections.abc import Iterator

import pyfuse3
import trio

from acstor_agent.mount import fuse_connection
from tests.fakes import hosts
from tests.lab import runs

ROOT = pathlib.Path(__file__).resolve().parents[2]


class _Server(pyfuse3.Operations):
    """The files of ``folder``; inode numbers in the order of first use."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__()
        self._folder = folder
        self._paths = {pyfuse3.ROOT_INODE: folder}
        self._answers = trio.Event()
        self._answers.set()

    async def signals(self) -> None:
        """Stop replying on SIGUSR1, resume on SIGUSR2."""
        with trio.open_signal_receiver(signal.SIGUSR1, signal.SIGUSR2) as seen:
            print("ready", flush=True)
            async for number in seen:
                if number == signal.SIGUSR2:
                    self._answers.set()
                elif self._answers.is_set():
                    self._answers = trio.Event()
                print("seen", flush=True)

    def _inode(self, path: pathlib.Path) -> int:
        known = {known: inode for inode, known in self._paths.items()}
        inode = known.get(path, pyfuse3.ROOT_INODE + len(self._paths))
        self._paths[inode] = path
        return inode

    async def getattr(self, inode, ctx=None):
        await self._answers.wait()
        try:
            found = self._paths[inode].stat()
        except FileNotFoundError:
            raise pyfuse3.FUSEError(errno.ENOENT) from None
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = inode
        is_folder = stat.S_ISDIR(found.st_mode)
        entry.st_mode = stat.S_IFDIR | 0o755 if is_folder else stat.S_IFREG | 0o644
        entry.st_nlink, entry.st_size = 1, found.st_size
        entry.entry_timeout = entry.attr_timeout = 0.0
        return entry

    async def lookup(self, parent_inode, name, ctx=None):
        return await self.getattr(self._inode(self._folder / os.fsdecode(name)))

    async def open(self, inode, flags, ctx):
        await self._answers.wait()
        return pyfuse3.FileInfo(fh=inode, direct_io=True)

    async def read(self, fh, off, size):
        await self._answers.wait()
        with self._paths[fh].open("rb") as file:
            return os.pread(file.fileno(), size, off)

    async def flush(self, fh):
        await self._answers.wait()


class HungFolder:
    """A running file server."""

    def __init__(self, process: subprocess.Popen[str], mount_point: pathlib.Path) -> None:
        self._process, self.mount_point = process, mount_point

    def stop(self) -> None:
        """Freeze it with SIGSTOP."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Resume a frozen server."""
        self._process.send_signal(signal.SIGCONT)

    def take_and_keep(self) -> None:
        """Make it take requests without a reply."""
        self._tell(signal.SIGUSR1)

    def answer(self) -> None:
        """Make it reply, also to pending requests."""
        self._tell(signal.SIGUSR2)

    def _tell(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "seen\n"


@contextlib.contextmanager
def serving(folder: pathlib.Path, mount_point: pathlib.Path) -> Iterator[HungFolder]:
    """Serve ``folder`` at ``mount_point`` for the block."""
    mount_point.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.hung_folder", str(folder), str(mount_point)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield HungFolder(process, mount_point)
    finally:
        hosts.kill(process.pid)  # kills a stopped process, too
        process.communicate()
        for point in hosts.mounts(mount_point):
            runs.tool(["umount", "--lazy", point])


async def _main(folder: pathlib.Path, mount_point: str) -> None:
    server = _Server(folder)
    pyfuse3.init(server, mount_point, {"fsname=hung_folder", "ro"})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pyfuse3.main)
        nursery.start_soon(server.signals)


def _begin(argv: list[str], main: Callable[..., object] = trio.run) -> None:
    fuse_connection.die_with_parent()
    main(_main, pathlib.Path(argv[1]), argv[2])


if __name__ == "__main__":
    _begin(sys.argv)
