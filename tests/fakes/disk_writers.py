# SPDX-License-Identifier: Apache-2.0
"""A guest's reads and writes without a guest, made on a disk and on a plain file.

As a process of its own (``Writer``) it runs until its standard input ends or an operation
fails, and prints a report as one line of JSON.  The report names the failed operation, because
its effect on the disk is unknown.

    python -m tests.fakes.disk_writers DISK PLAIN SEED WRITES

WRITES is a file descriptor; the file holds the number of completed writes.
"""

import dataclasses
import json
import mmap
import os
import pathlib
import random
import select
import struct
import subprocess
import sys
import time
from typing import Self

from acstor_common.model import geometry

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = 4096
CHUNK = geometry.DEFAULT_CHUNK_BYTES
LENGTHS = (PAGE, 3 * PAGE, CHUNK, CHUNK, 2 * CHUNK, 5 * CHUNK)
END_S = 20.0
COUNT = struct.Struct("=Q")


@dataclasses.dataclass
class Tally:
    """A writer's report."""

    writes: int = 0
    fsyncs: int = 0
    longest_s: float = 0.0
    wrong: list[str] = dataclasses.field(default_factory=list)
    error: str = ""
    failed: tuple[int, int] = (0, 0)


class Pair:
    """A disk and a plain file that must stay equal.

    :param flags: O_DIRECT, or 0; with O_DIRECT, offsets and lengths are multiples of 4 KiB
    """

    def __init__(self, disk: str, plain: str, rng: random.Random, flags: int) -> None:
        self._disk = os.open(disk, os.O_RDWR | flags)
        self._plain = os.open(plain, os.O_RDWR)
        self._size = os.fstat(self._plain).st_size
        self._unit = PAGE if flags else 1
        self._rng = rng
        self._view = memoryview(mmap.mmap(-1, max(LENGTHS)))
        self.tally = Tally()

    def close(self) -> None:
        """Close both files."""
        os.close(self._disk)
        os.close(self._plain)

    def _where(self) -> tuple[int, int]:
        length = self._rng.choice(LENGTHS)
        if self._unit == 1 and self._rng.random() < 0.5:
            length = self._rng.randrange(1, length)
        step = self._rng.choice([self._unit, CHUNK])
        offset = self._rng.randrange(self._size // step) * step
        return offset, min(length, self._size - offset)

    def step(self) -> None:
        """Make one random read or write, sometimes with fsync.

        :raises OSError: the disk failed
        """
        offset, length = self._where()
        self.tally.failed = (offset, length)
        began_s = time.monotonic()
        if self._rng.random() < 0.6:
            self._view[:length] = self._rng.randbytes(length)
            if os.pwritev(self._disk, [self._view[:length]], offset) != length:
                self.tally.wrong.append(f"short write at {offset}")
            os.pwritev(self._plain, [self._view[:length]], offset)
            self.tally.writes += 1
            if self._rng.random() < 0.2:
                os.fsync(self._disk)
                self.tally.fsyncs += 1
        else:
            got = os.preadv(self._disk, [self._view[:length]], offset)
            if self._view[:got] != os.pread(self._plain, length, offset):
                self.tally.wrong.append(f"{length} bytes at {offset}")
        self.tally.longest_s = max(self.tally.longest_s, time.monotonic() - began_s)


def differ(
    disk: pathlib.Path, plain: pathlib.Path, rng: random.Random, flags: int, steps: int
) -> list[str]:
    """Make ``steps`` operations on both; return the differences."""
    pair = Pair(str(disk), str(plain), rng, flags)
    try:
        for _ in range(steps):
            pair.step()
    finally:
        pair.close()
    return pair.tally.wrong


class Writer:
    """Context manager: the writer's process, which uses O_DIRECT."""

    def __init__(self, disk: pathlib.Path, plain: pathlib.Path, seed: int) -> None:
        self._argv = [sys.executable, "-m", "tests.fakes.disk_writers", disk, plain, str(seed)]

    def __enter__(self) -> Self:
        self._count = os.memfd_create("writes")
        os.pwrite(self._count, COUNT.pack(0), 0)
        self._process = subprocess.Popen(
            [*self._argv, str(self._count)], cwd=ROOT, pass_fds=[self._count],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        os.close(self._count)

    def writes(self) -> int:
        """Return the number of completed writes."""
        return COUNT.unpack(os.pread(self._count, COUNT.size, 0))[0]

    def wait_failed(self) -> None:
        """Wait until an operation of the disk fails."""
        self._process.wait(END_S)

    def stop(self) -> Tally:
        """Stop the writer and return its report; a hanging writer is an error in it."""
        try:
            said, _ = self._process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            return Tally(error=f"the writer hung for {END_S} s")
        if self._process.returncode:
            return Tally(error=f"the writer ended with {self._process.returncode}")
        return Tally(**json.loads(said))


def main() -> None:
    """Write until standard input ends or the disk fails."""
    disk, plain, seed, count = sys.argv[1:]
    pair = Pair(disk, plain, random.Random(seed), os.O_DIRECT)
    while not select.select([sys.stdin], [], [], 0)[0]:
        try:
            pair.step()
        except OSError as e:
            pair.tally.error = str(e)
            break
        os.pwrite(int(count), COUNT.pack(pair.tally.writes), 0)
    print(json.dumps(dataclasses.asdict(pair.tally)))


if __name__ == "__main__":
    main()
