# SPDX-License-Identifier: Apache-2.0
"""A guest's applications without a guest: threads that use one disk with O_DIRECT.

    python -m tests.fakes.disk_applications PATH SEED < APPLICATIONS

The first line of standard input is a JSON list of applications (see :class:`Application`).  The
process prints "ready", starts at the second line, and prints a JSON list of each application's
run time in seconds.
"""

import concurrent.futures
import dataclasses
import json
import mmap
import os
import random
import sys
import time
from collections.abc import Iterator

WINDOW = 128 * 1024
BLOCK = 16 * 1024


@dataclasses.dataclass(frozen=True)
class Application:
    """An application's I/O pattern.

    :param kind: SR, SW: sequential reads or writes, a window at a time; RR, RW: random blocks
    :param start: offset of its file
    :param length: of its file, which a sequential application reads or writes once
    :param count: blocks of a random application
    :param threads: that share the blocks of a random application
    """

    kind: str
    start: int
    length: int
    count: int = 0
    threads: int = 1

    @property
    def is_write(self) -> bool:
        return self.kind.endswith("W")

    @property
    def is_in_order(self) -> bool:
        return self.kind.startswith("S")

    @property
    def bytes(self) -> int:
        """The number of bytes it reads or writes."""
        return self.length if self.is_in_order else self.count * BLOCK

    def places(self, rng: random.Random) -> Iterator[int]:
        """Yield the offsets it reads or writes."""
        if self.is_in_order:
            yield from range(self.start, self.start + self.length, WINDOW)
        for _ in range(0 if self.is_in_order else self.count):
            yield self.start + rng.randrange(self.length // BLOCK) * BLOCK


def run(path: str, application: Application, seed: str) -> float:
    """Run an application; return its run time."""
    began_s = time.monotonic()
    places = list(application.places(random.Random(seed)))
    shares = [places[number :: application.threads] for number in range(application.threads)]
    with concurrent.futures.ThreadPoolExecutor(application.threads) as threads:
        for done in [threads.submit(_use, path, application, share) for share in shares]:
            done.result()
    return time.monotonic() - began_s


def _use(path: str, application: Application, places: list[int]) -> None:
    length = WINDOW if application.is_in_order else BLOCK
    fd = os.open(path, (os.O_RDWR if application.is_write else os.O_RDONLY) | os.O_DIRECT)
    try:
        with mmap.mmap(-1, length) as buffer:  # page-aligned, as O_DIRECT requires
            buffer[:8] = b"written "
            for at in places:
                move = os.pwritev if application.is_write else os.preadv
                if move(fd, [buffer], at) != length:
                    raise OSError(f"cut short at {at} of {path}")
    finally:
        os.close(fd)


def main() -> None:
    """Run all applications concurrently."""
    path, seed = sys.argv[1:]
    wanted = [Application(**fields) for fields in json.loads(sys.stdin.readline())]
    with concurrent.futures.ThreadPoolExecutor(len(wanted)) as threads:
        print("ready", flush=True)
        sys.stdin.readline()
        running = [
            threads.submit(run, path, application, f"{seed}/{number}")
            for number, application in enumerate(wanted)
        ]
        print(json.dumps([done.result() for done in running]), flush=True)


if __name__ == "__main__":
    main()
