# SPDX-License-Identifier: Apache-2.0
"""A guest's stand-in: threads that read at random with O_DIRECT and compare every byte.

Run as ``python -m evaluation.bench.reader MIRROR REFERENCE SECONDS THREADS``; the last
line is JSON.  It is a process of its own, as a guest is.
"""

import json
import mmap
import os
import random
import sys
import threading
import time

READ_BYTES = 64 * 1024


class Reader:
    """Reads one file through several threads until it is told to stop."""

    def __init__(self, path: str, reference: bytes) -> None:
        self.latencies_s: list[float] = []
        self.faults: list[str] = []
        self.is_stopping = False
        self._path = path
        self._reference = reference

    def read(self, seed: int) -> None:
        """Be one thread."""
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
            self.latencies_s.append(time.monotonic() - began)


def main() -> None:
    path, reference, seconds, threads = sys.argv[1:5]
    with open(reference, "rb") as file:
        reader = Reader(path, file.read())
    workers = [
        threading.Thread(target=reader.read, args=(n,), daemon=True) for n in range(int(threads))
    ]
    for worker in workers:
        worker.start()
    time.sleep(float(seconds))
    reader.is_stopping = True
    for worker in workers:
        worker.join(5)
    report = {
        "reads": len(reader.latencies_s),
        "longest_s": max(reader.latencies_s),
        "faults": reader.faults[:10],
        "fault_count": len(reader.faults),
        "stuck": sum(worker.is_alive() for worker in workers),
    }
    print(json.dumps(report), flush=True)
    os._exit(0)  # a thread that is stuck in a read would keep the process for ever


if __name__ == "__main__":
    main()
