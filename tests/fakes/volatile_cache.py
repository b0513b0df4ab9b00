# SPDX-License-Identifier: Apache-2.0
"""A block device with a volatile write cache, and a file system on it, for power failures.

    python -m tests.fakes.volatile_cache STORE FOLDER SEED

The device is a loop device over a FUSE file, whose server keeps written pages in memory until the
device is flushed.  SIGUSR1 is the power failure: any subset of these pages reaches the store, and
the server ends, so each later request fails.
"""

import contextlib
import ctypes
import errno
import os
import pathlib
import random
import signal
import stat
import subprocess
import sys
import time
from typing import Self

import pyfuse3
import trio

from acstor_agent.mount import fuse_connection
from tests.fakes import file_systems
from tests.fakes import fuse_loop
from tests.lab import runs

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = 4096
NAME = b"device"
_INODE = pyfuse3.InodeT(2)
_DEADLINE_S = 600.0
_WRITE_BACK = 0b110  # SYNC_FILE_RANGE_WRITE and SYNC_FILE_RANGE_WAIT_AFTER


class VolatileCache(pyfuse3.Operations):
    """The device: a file whose pages reach ``store`` at fsync."""

    enable_writeback_cache = False

    def __init__(self, store: int, rng: random.Random) -> None:
        super().__init__()
        self._store, self._rng = store, rng
        self._size = os.fstat(store).st_size
        self._volatile: dict[int, bytes] = {}

    def fail(self) -> None:
        """Write a random subset of the volatile pages."""
        kept = self._rng.random()
        self._write({n: page for n, page in self._volatile.items() if self._rng.random() < kept})

    def _write(self, pages: dict[int, bytes]) -> None:
        for number, page in pages.items():
            os.pwrite(self._store, page, number * PAGE)

    async def getattr(self, inode, ctx=None):
        entry = pyfuse3.EntryAttributes()
        entry.st_ino, entry.st_nlink, entry.st_size = inode, 1, self._size
        entry.st_mode = stat.S_IFREG | 0o600 if inode == _INODE else stat.S_IFDIR | 0o700
        return entry

    async def lookup(self, parent_inode, name, ctx=None):
        if name != NAME:
            raise pyfuse3.FUSEError(errno.ENOENT)
        return await self.getattr(_INODE)

    async def open(self, inode, flags, ctx):
        return pyfuse3.FileInfo(fh=inode, direct_io=True)

    async def read(self, fh, off, size):
        _check_aligned(off, size)
        data = bytearray(os.pread(self._store, size, off))
        for number in range(off // PAGE, (off + len(data)) // PAGE):
            if number in self._volatile:
                at = number * PAGE - off
                data[at : at + PAGE] = self._volatile[number]
        return data

    async def write(self, fh, off, buf):
        _check_aligned(off, len(buf))
        for at in range(0, len(buf), PAGE):
            self._volatile[(off + at) // PAGE] = bytes(buf[at : at + PAGE])
        return len(buf)

    async def fsync(self, fh, datasync):
        self._write(self._volatile)
        self._volatile.clear()

    async def flush(self, fh):
        """Closing a descriptor flushes nothing."""


def _check_aligned(offset: int, length: int) -> None:
    if offset % PAGE or length % PAGE:
        raise pyfuse3.FUSEError(errno.EINVAL)


def _write_back(path: pathlib.Path) -> None:
    """Write a file's dirty pages to the device, without a flush, as the kernel may at any time."""
    with contextlib.suppress(FileNotFoundError):
        if path.is_file():
            with path.open("rb") as file:
                whole = ctypes.c_int64(0)
                ctypes.CDLL(None).sync_file_range(file.fileno(), whole, whole, _WRITE_BACK)


class PowerFailingFileSystem:
    """Context manager: a file system whose host loses power, and boots again.

    :param folder: parent of its store and mount point
    :param kind: of file system
    """

    def __init__(
        self, folder: pathlib.Path, size_bytes: int, seed: int, kind: str = "ext4"
    ) -> None:
        self.at = folder / kind
        self._kind, self._rng = kind, random.Random(seed)
        self._store, self._device = folder / "store", folder / "power"
        for made in (self.at, self._device):
            made.mkdir(parents=True)
        with self._store.open("wb") as file:
            file.truncate(size_bytes)
        self._server: subprocess.Popen[str] | None = None
        self._loop = ""

    def __enter__(self) -> Self:
        self._attach()
        file_systems.run(*file_systems.MAKE[self._kind], self._loop)
        self._mount()
        return self

    def __exit__(self, *_: object) -> None:
        for point in runs.mounts_beneath(self.at):
            file_systems.run("umount", "--lazy", point)
        if self._loop:
            self._detach()

    def boot(self) -> None:
        """Power it on: the file system replays its journal."""
        self._attach()
        self._mount()

    def fail(self) -> None:
        """Lose power, perhaps during a writeback: each access fails that needs the device."""
        assert self._server is not None
        if self._rng.random() < 0.5:
            for path in self.at.glob("**/*"):
                _write_back(path)
        self._server.send_signal(signal.SIGUSR1)
        self._server.wait(_DEADLINE_S)

    def shut_down(self) -> None:
        """Unmount after a power failure; no process may use the file system any more.

        :raises TimeoutError: one uses it
        """
        ends_s = time.monotonic() + _DEADLINE_S
        while subprocess.run(["umount", self.at], check=False, capture_output=True).returncode:
            if time.monotonic() > ends_s:
                raise TimeoutError(f"{self.at} is in use")
            time.sleep(0.1)
        self._detach()

    def _attach(self) -> None:
        seed = str(self._rng.getrandbits(32))
        argv = [sys.executable, "-m", "tests.fakes.volatile_cache", self._store, self._device, seed]
        self._server = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._server.stdout is not None
        if self._server.stdout.readline() != "ready\n":
            raise RuntimeError("no device with a volatile cache")
        words = ["losetup", "--find", "--show", "--direct-io=on", f"--sector-size={PAGE}"]
        self._loop = file_systems.run(*words, self._device / os.fsdecode(NAME)).strip()

    def _mount(self) -> None:
        """Mount, even if a mount namespace of another process still has it from before."""
        options = ["-o", "nouuid"] if self._kind == "xfs" else []
        file_systems.run("mount", *options, self._loop, self.at)

    def _detach(self) -> None:
        loop, self._loop = self._loop, ""
        file_systems.run("losetup", "--detach", loop)
        assert self._server is not None
        self._server.terminate()
        self._server.communicate(timeout=_DEADLINE_S)
        for point in runs.mounts_beneath(self._device):  # left by a killed server
            file_systems.run("umount", "--lazy", point)


async def _main(store: str, folder: str, seed: str) -> None:
    device = VolatileCache(os.open(store, os.O_RDWR), random.Random(seed))
    pyfuse3.init(device, folder, {"fsname=volatile_cache"})

    async def await_failure() -> None:
        with trio.open_signal_receiver(signal.SIGUSR1) as failures:
            print("ready", flush=True)
            async for _ in failures:
                device.fail()
                os._exit(0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(await_failure)
        await fuse_loop.answer_until_stopped()
        nursery.cancel_scope.cancel()


def main() -> None:
    """Serve the device until SIGTERM or the power failure."""
    fuse_connection.die_with_parent()
    trio.run(_main, *sys.argv[1:])


if __name__ == "__main__":
    main()
