# SPDX-License-Identifier: Apache-2.0
"""Guests' reads without guests: threads that read mirrors at random with O_DIRECT.

The threads run in a process of their own, because a hanging read blocks its process.  They
compare each byte with the image's own file.  At the end of standard input the process prints
the number of errors as one line of JSON.

    python -m tests.fakes.guest_readers TRUTH SEED THREADS MIRROR...
"""

import dataclasses
import json
import mmap
import os
import pathlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Self

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = 4096
LENGTHS = (PAGE, 4 * PAGE, 64 * 1024, 64 * 1024, 256 * 1024)
JUMPS = 0.7
END_S = 20.0


@dataclasses.dataclass
class Tally:
    """The report of the readers."""

    reads: int = 0
    bytes: int = 0
    wrong: list[str] = dataclasses.field(default_factory=list)
    errors: list[str] = dataclasses.field(default_factory=list)
    longest_s: float = 0.0


class Readers:
    """Context manager: the process of the readers.

    :param truth: the file that each mirror must equal
    """

    def __init__(
        self, truth: pathlib.Path, mirrors: Sequence[pathlib.Path], seed: int, threads: int = 8
    ) -> None:
        self._argv = [sys.executable, "-m", "tests.fakes.guest_readers", str(truth), str(seed)]
        self._argv += [str(threads), *map(str, mirrors)]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # all mirrors are open, or the process has ended
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def stop(self) -> Tally:
        """Stop the readers and return their report; a hanging reader is an error in it."""
        try:
            said, _ = self._process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            return Tally(errors=[f"a reader hung for {END_S} s"])
        if self._process.returncode:
            return Tally(errors=[f"the readers ended with {self._process.returncode}"])
        return Tally(**json.loads(said))


def read_at_random(
    path: str, fd: int, truth: bytes, rng: random.Random, tally: Tally, end: threading.Event
) -> None:
    """Read and compare until ``end``; the image's last page may be partial."""
    buffer = mmap.mmap(-1, max(LENGTHS))
    view = memoryview(buffer)
    offset = length = 0
    while not end.is_set():
        offset += length  # sometimes read sequentially, which triggers the agent's read-ahead
        length = rng.choice(LENGTHS)
        if offset >= len(truth) or rng.random() < JUMPS:
            offset = rng.randrange(-(-len(truth) // PAGE)) * PAGE
        began_s = time.monotonic()
        try:
            got = os.preadv(fd, [view[:length]], offset)
        except OSError as e:
            tally.errors.append(f"{e.strerror} at {offset} of {path}")
            time.sleep(0.01)
        else:
            if view[:got] != truth[offset : offset + length]:
                tally.wrong.append(f"{got} bytes at {offset} of {path}")
            tally.bytes += got
        tally.reads += 1
        tally.longest_s = max(tally.longest_s, time.monotonic() - began_s)


def main() -> None:
    """Read until standard input ends."""
    truth_path, seed, threads, *mirrors = sys.argv[1:]
    truth = pathlib.Path(truth_path).read_bytes()
    end = threading.Event()
    tallies = [Tally() for _ in range(int(threads))]
    readers = []
    for n, tally in enumerate(tallies):
        path = mirrors[n % len(mirrors)]
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        args = (path, fd, truth, random.Random(f"{seed}/{n}"), tally, end)
        readers.append(threading.Thread(target=read_at_random, args=args))
    print("open", flush=True)
    for reader in readers:
        reader.start()
    sys.stdin.read()
    end.set()
    for reader in readers:
        reader.join()
    total = Tally(
        reads=sum(tally.reads for tally in tallies),
        bytes=sum(tally.bytes for tally in tallies),
        wrong=[text for tally in tallies for text in tally.wrong][:20],
        errors=[text for tally in tallies for text in tally.errors][:20],
        longest_s=max(tally.longest_s for tally in tallies),
    )
    print(json.dumps(dataclasses.asdict(total)))


if __name__ == "__main__":
    main()
