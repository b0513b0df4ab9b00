# SPDX-License-Identifier: Apache-2.0
"""QEMU's tools on hostile images, with limits of memory, time and output."""

import errno
import os
import pathlib
import signal
import subprocess
from typing import NamedTuple

MEMORY_BYTES = 2 << 30
CPU_S, DEADLINE_S = 30, 90
SAID_CHARACTERS = 200
TOO_LARGE = os.strerror(errno.EFBIG)
NO_END = "no end in time"
DAMAGED = 2  # exit status of qemu-img check
SOUND = (0, 3)  # no errors, or unused clusters alone


class Run(NamedTuple):
    """A tool's exit status, and the end of its output."""

    status: int
    said: str


def run(
    words: list[object], max_bytes: int, cpu_s: int = CPU_S, deadline_s: float = DEADLINE_S
) -> Run:
    """Run a tool; ``max_bytes`` limits each file that it writes."""
    bounds = {"as": MEMORY_BYTES, "cpu": cpu_s, "fsize": max_bytes, "core": 0, "nofile": 256}
    prefix = ["prlimit", *(f"--{name}={value}" for name, value in bounds.items()), "--"]
    try:
        done = subprocess.run(
            [*prefix, *map(str, words)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=deadline_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Run(-1, NO_END)
    if done.returncode == -signal.SIGXFSZ:
        return Run(done.returncode, TOO_LARGE)
    said = (done.stderr or done.stdout).strip().rpartition("\n")[2]
    return Run(done.returncode, said[-SAID_CHARACTERS:] or f"status {done.returncode}")


def why_not_converted(image: pathlib.Path, driver: str, raw: pathlib.Path, max_bytes: int) -> str:
    """Convert a disk to a raw file; return QEMU's error, "" if it succeeds."""
    words = ["qemu-img", "convert", "-t", "unsafe", "-f", driver, "-O", "raw", image, raw]
    done = run(words, max_bytes)
    return done.said if done.status else ""


def check(image: pathlib.Path, deadline_s: float = DEADLINE_S) -> Run:
    """Check a qcow2 file by ``qemu-img check``."""
    words = ["qemu-img", "check", "-q", "-f", "qcow2", image]
    return run(words, 1 << 20, deadline_s=deadline_s)


def is_sound(image: pathlib.Path) -> bool:
    """Return whether ``qemu-img check`` finds no damage in a qcow2 file."""
    return check(image).status in SOUND
