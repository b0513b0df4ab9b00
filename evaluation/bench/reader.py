# SPDX-License-Identifier: Apache-2.0
"""A guest's stand-in: threads that read at random with O_DIRECT and compare bytes.

``python -m evaluation.bench.reader MIRROR REFERENCE THREADS`` reads until its standard input ends;
its last line is JSON.  It is a process of its own, like a guest.
"""

import json
import mmap
import os
import random
import sys
import threading
import time

READ_BYTES = 64 * 1024
SLOW_S = 0.02
SLOW_READS = 100_000  # reported ones


class Reader:
    """Reads one file through several threads until stopped."""

    def __init__(self, path: str, reference: bytes) -> None:
        self.reads, self.longest_s = 0, 0.0
        self.slow: list[tuple[float, float]] = []  # end of each, by the monotonic clock; seconds
        self.faults: list[str] = []
        self.is_stopping = False
        self._path = path
        self._reference = reference

    def read(self, seed: int) -> None:
        """Run one thread."""
        rng = random.Random(seed)
        fd = os.open(self._path, os.O_RDONLY | os.O_DIRECT)
        buffer = mmap.mmap(-1, READ_BYTES)
        while not self.is_stopping:
            offset = rng.randrange(len(self._reference) // READ_BYTES) * READ_BYTES
            began = time.monotonic()
            try:
                count = os.preadv(fd, [buffer], offset)
            except OSError as e:
                self.faults.append(str(e))
                time.sleep(0.05)
            else:
                if buffer[:count] != self._reference[offset : offset + READ_BYTES]:
                    self.faults.append(f"wrong bytes at {offset}")
            self._note(began, time.monotonic())

    def _note(self, began: float, ended: float) -> None:
        self.reads += 1
        self.longest_s = max(self.longest_s, ended - began)
        if ended - began > SLOW_S and len(self.slow) < SLOW_READS:
            self.slow.append((ended, ended - began))


def main() -> None:
    path, reference, threads = sys.argv[1:]
    with open(reference, "rb") as file:
        reader = Reader(path, file.read())
    workers = [
        threading.Thread(target=reader.read, args=(n,), daemon=True) for n in range(int(threads))
    ]
    for worker in workers:
        worker.start()
    sys.stdin.read()
    reader.is_stopping = True
    for worker in workers:
        worker.join(5)
    report = {
        "reads": reader.reads,
        "longest_s": reader.longest_s,
        "slow": reader.slow,
        "faults": reader.faults[:10],
        "fault_count": len(reader.faults),
        "stuck": sum(worker.is_alive() for worker in workers),
    }
    print(json.dumps(report), flush=True)
    os._exit(0)  # a thread stuck in a read would keep the process alive


if __name__ == "__main__":
    main()
