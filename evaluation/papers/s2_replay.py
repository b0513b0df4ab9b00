# SPDX-License-Identifier: Apache-2.0
"""Replays boots: ``python -m evaluation.papers.s2_replay PLAN`` prints their ends.

PLAN is a JSON file::

    {"ops": "shared.json", "think": 1.0, "in_turn": false, "memory": "/sys/fs/cgroup/…" or null,
     "guests": [{"image": "/…", "own": "/…"}],
     "prefetch": [{"image": "/…", "spans": [[0, 4096]]}]}

Each guest is a thread that repeats the recorded requests in order, each after the response to the
previous one and after the recorded think time, times ``think``.  Reads use the page cache, as those
of QEMU with ``writethrough``.  With ``in_turn`` the others start after the end of the first one.
Prefetching starts with the guests.

It is a process of its own, so that a memory limit covers only guests and their page cache.
"""

import json
import os
import pathlib
import sys
import threading
import time
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

LEAST_SLEEP_S = 0.001
"""Shorter think times are joined, since sleeps take longer than requested."""

WRITTEN = memoryview(b"w" * (16 << 20))
"""Its pages are resident: the kernel would split a write at each missing one."""


class Guest:
    """A guest; :attr:`ended_s` is its end."""

    def __init__(self, plan: Mapping[str, Any], files: Mapping[str, str]) -> None:
        self.ended_s = 0.0
        self._think = plan["think"]
        self._image = os.open(files["image"], os.O_RDONLY)
        self._own = os.open(files["own"], os.O_RDWR) if files.get("own") else -1

    def boot(self, ops: Sequence[tuple[float, str, int, int]]) -> None:
        """Replay a boot."""
        due_s = 0.0
        for think_s, kind, offset, length in ops:
            due_s += think_s * self._think
            if due_s >= LEAST_SLEEP_S:
                began_s = time.monotonic()
                time.sleep(due_s)
                due_s -= time.monotonic() - began_s
            if kind == "r":
                os.pread(self._image, length, offset)
            elif self._own >= 0 and kind == "w":
                os.pwrite(self._own, WRITTEN[:length], offset)
            elif self._own >= 0:
                os.pread(self._own, length, offset)
        self.ended_s = time.monotonic()


def prefetch(image: str, spans: Sequence[tuple[int, int]]) -> None:
    """Read parts of an image into the page cache."""
    fd = os.open(image, os.O_RDONLY)
    for offset, length in spans:
        os.pread(fd, length, offset)


def run(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Boot the guests of a plan; return their durations and the total."""
    ops = json.loads(pathlib.Path(plan["ops"]).read_text())
    guests = [Guest(plan, files) for files in plan["guests"]]
    began_s = time.monotonic()
    for one in plan["prefetch"]:
        threading.Thread(target=prefetch, args=(one["image"], one["spans"]), daemon=True).start()
    groups = [guests[:1], guests[1:]] if plan["in_turn"] else [guests]
    for group in groups:
        threads = [threading.Thread(target=guest.boot, args=(ops,)) for guest in group]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    ends = [round(guest.ended_s - began_s, 3) for guest in guests]
    return {"all_s": max(ends), "each_s": ends}


def main() -> int:
    """Run a plan and print the result."""
    plan = json.loads(pathlib.Path(sys.argv[1]).read_text())
    if plan["memory"]:
        (pathlib.Path(plan["memory"]) / "cgroup.procs").write_text(str(os.getpid()))
    print(json.dumps(run(plan)), flush=True)
    os._exit(0)  # a remaining prefetch has no use
    return 0


if __name__ == "__main__":
    sys.exit(main())
