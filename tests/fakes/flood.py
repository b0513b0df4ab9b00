# SPDX-License-Identifier: Apache-2.0
"""A guest with many reads and no reply: ``python -m tests.fakes.flood``.

It is a process of its own, because only a kill interrupts a pending FUSE read.  Each read has a
thread, as in QEMU with ``aio=threads``.
"""

import contextlib
import mmap
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Iterator

STACK_BYTES = 64 * 1024


@contextlib.contextmanager
def reading(path: pathlib.Path, reads: int, length: int, step: int) -> Iterator[None]:
    """Keep ``reads`` reads of ``length`` bytes pending, at distance ``step``."""
    argv = [sys.executable, "-m", "tests.fakes.flood", path, reads, length, step]
    process = subprocess.Popen([str(one) for one in argv], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        if process.stdout.readline() != b"reading\n":
            raise RuntimeError("the flood did not begin")
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def main(path: str, reads: int, length: int, step: int) -> None:
    """Start all reads, and return after the last one."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, length)

    def read(offset: int) -> None:
        with contextlib.suppress(OSError):  # EIO after its deadline
            os.preadv(fd, [buffer], offset)

    threading.stack_size(STACK_BYTES)
    for number in range(reads):
        threading.Thread(target=read, args=(number * step,)).start()
    print("reading", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
