# SPDX-License-Identifier: Apache-2.0
"""A guest that writes here and there all over a large disk takes no memory of the daemon."""

import json
import pathlib
import struct
import subprocess
import sys

import pytest

from tests.fakes import nbd_server

GIB = 1 << 30
LIMIT_BYTES = 256 << 20
"""Of the daemon; this process has as much of it as matters."""
PROGRAM = """
import json, sys, threading
from acstor_checkpoint import capture, nbd, pace
from acstor_common import checkpoint_manifest, checkpoint_sealing, chunk_map, geometry, ids
path, pid, size_bytes, chunk_bytes = sys.argv[1], *map(int, sys.argv[2:])
id, seal = ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"), checkpoint_sealing.Seal(b"k" * 32)

class Copies:
    def lacking(self, names):
        return set()

class Disk(nbd.Disk):
    def read_into(self, view, at):  # zeros, which need no holder
        pass

cut = geometry.Geometry(size_bytes, chunk_bytes)
subject = checkpoint_manifest.Subject(
    id, id, "p", id, chunk_map.UNKNOWN_OS_HASH, cut, 1, checkpoint_manifest.Consistency.CRASH, 1
)
before = checkpoint_manifest.Manifest.parse(checkpoint_manifest.build(subject, ()), "it")
with Disk(nbd.Export(path, "vda", pid, size_bytes), nbd.ALLOCATION, 60.0) as disk:
    free = pace.Pace(0, threading.Event())
    taking = capture.Taking(disk, chunk_bytes, seal, Copies(), free, lambda: True)
    written = lambda: (extent[:2] for extent in disk.extents() if extent.flags & nbd.DIRTY)
    error = ""
    try:
        for _ in taking.entries(capture.Seen(before, written, lambda: ())):
            pass
    except capture.TooLarge as e:
        error = str(e)
with open("/proc/self/status") as file:  # ru_maxrss begins at what the parent had
    [used] = [int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM:")]
print(json.dumps([used, taking.read_bytes, taking.left_bytes, error]))
"""


def status(cookie: int, _at: int, length: int) -> bytes:
    """Say that each second 64 KiB were written."""
    return nbd_server.reply(5, struct.pack(">I", 7) + PAIR * (length >> 17), cookie)


PAIR = struct.pack(">IIII", 1 << 16, 1, 1 << 16, 0)


@pytest.mark.parametrize(
    ("size_bytes", "chunk_bytes", "is_too_large"),
    [(2048 * GIB, 1 << 16, True), (256 * GIB, 1 << 20, False)],
)
def test_each_second_64_kib_of_a_large_disk(
    tmp_path: pathlib.Path, size_bytes: int, chunk_bytes: int, is_too_large: bool
) -> None:
    with nbd_server.telling(tmp_path, size_bytes, status) as export:
        args = (export.path, export.pid, size_bytes, chunk_bytes)
        argv = [sys.executable, "-c", PROGRAM, *map(str, args)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    used, read_bytes, left_bytes, error = json.loads(done.stdout)
    print(f"{size_bytes >> 30} GiB: {used >> 20} MiB, {error or 'all seen'}")
    assert used < LIMIT_BYTES
    if is_too_large:  # before anything is read
        assert "more than 128 GiB" in error and read_bytes == 0
    else:
        assert read_bytes + left_bytes == size_bytes
