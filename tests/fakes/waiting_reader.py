# SPDX-License-Identifier: Apache-2.0
"""One read of a mirror in its own process, by one of the guests' methods.

It prints ``open`` before the read, then the digest of the bytes or the error's name.  A test can
kill a blocked read without blocking itself.

    python -m tests.fakes.waiting_reader WAY PATH OFFSET LENGTH
"""

import contextlib
import ctypes
import errno
import hashlib
import mmap
import os
import pathlib
import platform
import signal
import struct
import subprocess
import sys
import threading
import time
from typing import Self

ROOT = pathlib.Path(__file__).resolve().parents[2]
WAYS = ("thread", "aio", "buffered", "mmap")
END_S = 30.0
_IO_SETUP, _IO_GETEVENTS, _IO_SUBMIT = (
    (206, 208, 209) if platform.machine() == "x86_64" else (0, 4, 2)
)


def digest(data: bytes) -> str:
    """Return a reader's output for read bytes."""
    return hashlib.sha256(data).hexdigest()


class Reader:
    """Context manager: a process that reads, killed at the end."""

    def __init__(self, way: str, path: pathlib.Path, offset: int, length: int) -> None:
        argv = [sys.executable, "-m", "tests.fakes.waiting_reader", way, str(path)]
        self._argv = [*argv, str(offset), str(length)]

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(self._argv, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "open\n"
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs: the test has failed
            self.process.communicate(timeout=END_S)

    def said(self) -> str:
        """Return the output after the read."""
        return self.process.communicate(timeout=END_S)[0].strip()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> float:
        """Kill the process; return the time until its end.

        :raises subprocess.TimeoutExpired: it survives
        """
        began_s = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(END_S)
        return time.monotonic() - began_s

    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self.process.poll() is not None


def read_in_thread(path: str, offset: int, length: int) -> bytes:
    """Read with O_DIRECT, like QEMU with aio=threads."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffer, done = mmap.mmap(-1, length), []

    def read() -> None:
        try:
            done.append(os.preadv(fd, [buffer], offset))
        except OSError as e:
            done.append(e)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    if isinstance(done[0], OSError):
        raise done[0]
    return buffer[: done[0]]


def read_by_aio(path: str, offset: int, length: int) -> bytes:
    """Read with O_DIRECT and Linux AIO, like QEMU with aio=native."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, length)
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    context = ctypes.c_ulong(0)
    assert libc.syscall(_IO_SETUP, 1, ctypes.byref(context)) == 0
    block = struct.pack("<QIIHhIQQqQII", 0, 0, 0, 0, 0, fd, address, length, offset, 0, 0, 0)
    kept = ctypes.create_string_buffer(block, len(block))
    blocks = (ctypes.c_void_p * 1)(ctypes.addressof(kept))
    assert libc.syscall(_IO_SUBMIT, context, ctypes.c_long(1), blocks) == 1
    events = ctypes.create_string_buffer(32)
    one = ctypes.c_long(1)
    assert libc.syscall(_IO_GETEVENTS, context, one, one, events, None) == 1
    result = struct.unpack_from("<q", events.raw, 16)[0]
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return buffer[:result]


def read_buffered(path: str, offset: int, length: int) -> bytes:
    """Read through the page cache."""
    fd = os.open(path, os.O_RDONLY)
    return os.pread(fd, length, offset)


def read_mapped(path: str, offset: int, length: int) -> bytes:
    """Read a mapping of the file."""
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)[offset : offset + length]


def main() -> None:
    """Read once."""
    way, path, offset, length = sys.argv[1:]
    reads = (read_in_thread, read_by_aio, read_buffered, read_mapped)
    os.stat(path)
    print("open", flush=True)
    try:
        print(digest(dict(zip(WAYS, reads, strict=True))[way](path, int(offset), int(length))))
    except OSError as e:
        print(errno.errorcode[e.errno or 0])


if __name__ == "__main__":
    main()
