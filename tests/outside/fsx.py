# SPDX-License-Identifier: Apache-2.0
"""fsx on disks, while workers or supervisors are killed.

fsx writes, reads, maps and syncs at random, and compares each byte that it reads with its own copy
of the file.  It may see no error: the next worker serves the requests of the killed one.
"""

import pathlib

from tests.outside import cargo
from tests.outside import crash_passes
from tests.outside import qemu_source

VERSION = "0.3.2"
PASS_OPERATIONS = 10_000
TOUCHED = {"MALLOC_PERTURB_": "1"}
"""Has glibc touch all allocated memory.  fsx first zeroes its disk, and Linux 6.18 makes two
requests of each page of untouched memory: that took longer than all operations."""
CONFIG = """\
blockmode = true
nosizechecks = true
[opsize]
max = 262144
[weights]
close_open = 0
truncate = 0
posix_fallocate = 0
read = 10
write = 10
mapread = 5
mapwrite = 5
invalidate = 1
fsync = 1
fdatasync = 1
"""


def build() -> pathlib.Path:
    """Build fsx by cargo; return the program."""
    folder = qemu_source.CACHE / "fsx"
    program = folder / "bin/fsx"
    if not program.is_file():
        words = ["install", "--locked", "--quiet", "--root", folder]
        cargo.run([*words, "--version", VERSION, "fsx"])
    return program


def run_on(
    disk: pathlib.Path, now: crash_passes.Pass, goal: crash_passes.Goal
) -> crash_passes.Work:
    """Run one pass on a disk."""
    folder = now.host.folder
    (folder / "fsx.toml").write_text(CONFIG)
    operations = min(PASS_OPERATIONS, max(1000, goal.operations // max(1, goal.kills)))
    words = [build(), "-f", folder / "fsx.toml", "-P", folder, "-N", operations]
    ended = now.run([*words, "-S", goal.seed + now.number, disk], now.fault, TOUCHED)
    return crash_passes.Work(operations, 0, ended.said if ended.status else "")
