# SPDX-License-Identifier: Apache-2.0
"""A guest's reads for hours in a process of their own; records each wrong read.

A reader's present state is in a shared page, so that a reader that hangs in the kernel is visible
from outside.  Each fault is one line of JSON.

    python -m tests.chaos.readers WAY TRUTH MIRROR SEED STATE FOUND
"""

import contextlib
import json
import mmap
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = 4096
LENGTHS = (PAGE, 4 * PAGE, 64 * 1024, 64 * 1024, 256 * 1024, 1 << 20)
JUMPS = 0.7
PAUSE_S = 0.01
FOUND_AT_MOST = 50
_STATE = struct.Struct("<QQdQQ")

Read = Callable[[int, int], bytes]


class State(NamedTuple):
    """The state of a reader.

    :param since_s: start of the present read, by the monotonic clock; 0 between two reads
    """

    reads: int = 0
    bytes: int = 0
    since_s: float = 0.0
    offset: int = 0
    length: int = 0


def is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped a process."""
    with contextlib.suppress(OSError):
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"
    return False


class Reader:
    """One reader, from outside."""

    extra_s = 0.0
    """Additional time that one of its reads may take."""

    def __init__(
        self, way: str, truth: pathlib.Path, mirror: pathlib.Path, seed: int, own: pathlib.Path
    ) -> None:
        """Start it; ``own`` is the prefix of its files."""
        self.way = way
        self.name = f"{way} reader of {mirror}"
        self.found_path = own.with_suffix(".found")
        self._state_path = own.with_suffix(".state")
        self._state_path.write_bytes(bytes(_STATE.size))
        self.found_path.touch()
        argv = [sys.executable, "-m", "tests.chaos.readers", way, truth, mirror, str(seed)]
        argv += [self._state_path, self.found_path, str(os.getpid())]
        self._process = subprocess.Popen(
            argv, cwd=ROOT, stdin=subprocess.DEVNULL, process_group=0
        )  # ^C is for the run alone
        self.pid = self._process.pid

    @property
    def state(self) -> State:
        """Its present state."""
        return State(*_STATE.unpack(self._state_path.read_bytes()))

    def found(self) -> list[str]:
        """Return the faults that it found, as text."""
        return [json.loads(line)["what"] for line in self.found_path.read_text().splitlines()]

    def status(self) -> int | None:
        """Return its exit status; None if it still runs."""
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped it."""
        return is_stopped(self.pid)

    def ended_in(self, deadline_s: float) -> bool:
        """Wait for its end; return whether it came."""
        try:
            self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            return False
        return True


def direct(path: str) -> Read:
    """Read past the page cache, as QEMU does with cache=none."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffer = memoryview(mmap.mmap(-1, max(LENGTHS)))

    def read(offset: int, length: int) -> bytes:
        return bytes(buffer[: os.preadv(fd, [buffer[:length]], offset)])

    return read


def buffered(path: str) -> Read:
    """Read through the page cache, after dropping the former part from it."""
    fd = os.open(path, os.O_RDONLY)

    def read(offset: int, length: int) -> bytes:
        os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)
        return os.pread(fd, length, offset)

    return read


def mapped(path: str) -> Read:
    """Read a mapping; an I/O error of the agent is a SIGBUS then."""
    fd = os.open(path, os.O_RDONLY)
    view = mmap.mmap(fd, 0, prot=mmap.PROT_READ)

    def read(offset: int, length: int) -> bytes:
        view.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)
        return view[offset : offset + length]

    return read


WAYS: dict[str, Callable[[str], Read]] = {"direct": direct, "buffered": buffered, "mapped": mapped}


def main(
    way: str, truth_path: str, path: str, seed: str, state_path: str, found_path: str, run_pid: str
) -> None:
    """Read for the life of the run."""
    truth = pathlib.Path(truth_path).read_bytes()
    rng = random.Random(f"{seed}/{path}")
    with open(state_path, "r+b") as state_file, open(found_path, "a", buffering=1) as found:
        state = mmap.mmap(state_file.fileno(), _STATE.size)
        state[:] = _STATE.pack(0, 0, time.monotonic(), 0, 0)
        read = WAYS[way](path)
        reads = total = offset = length = said = 0
        while os.getppid() == int(run_pid):
            offset += length  # sometimes continue in order, which starts the agent's read-ahead
            length = rng.choice(LENGTHS)
            if offset >= len(truth) or rng.random() < JUMPS:
                offset = rng.randrange(-(-len(truth) // PAGE)) * PAGE
            began_s = time.monotonic()
            state[:] = _STATE.pack(reads, total, began_s, offset, length)
            what = compare(read, offset, length, truth)
            total, reads = total + length, reads + 1
            state[:] = _STATE.pack(reads, total, 0.0, offset, length)
            if what and said < FOUND_AT_MOST:
                said += 1
                at = f"{way}: {length} bytes at {offset} of {path}, asked {began_s:.3f}: {what}"
                found.write(json.dumps({"what": at}) + "\n")
            time.sleep(PAUSE_S)


def compare(read: Read, offset: int, length: int, truth: bytes) -> str:
    """Read once; return the error in the response, or ""."""
    try:
        got = read(offset, length)
    except OSError as e:
        return f"{e.strerror} (errno {e.errno})"
    wanted = truth[offset : offset + length]
    if got == wanted:
        return ""
    if len(got) != len(wanted):
        return f"{len(got)} bytes came"
    wrong = [n for n in range(len(got)) if got[n] != wanted[n]]
    return f"{len(wrong)} bytes are wrong, the first is {offset + wrong[0]}"


if __name__ == "__main__":
    main(*sys.argv[1:])
