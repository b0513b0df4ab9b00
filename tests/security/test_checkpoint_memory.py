# SPDX-License-Identifier: Apache-2.0
"""A guest's scattered writes to a large disk take little memory of the daemon."""

import json
import pathlib
import struct
import subprocess
import sys

import pytest

from acstor_common.formats import checkpoint_manifest
from tests.fakes import nbd_server

GIB = 1 << 30
LIMIT_BYTES = 256 << 20
"""Limit of the daemon; the memory of this process is comparable."""
SLACK_BYTES = 24 << 20
PROGRAM = """
import json, sys, threading
from acstor_checkpoint.capture import disk_capture, nbd_client, rate_limit
from acstor_common.formats import checkpoint_manifest, checkpoint_encryption, chunk_map
from acstor_common.model import geometry, ids
path, pid, size_bytes, chunk_bytes = sys.argv[1], *map(int, sys.argv[2:])
id = ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
seal = checkpoint_encryption.Seal(b"k" * 32)

class Copies:
    def missing_names(self, names):
        return set()

class Disk(nbd_client.ExportedDisk):
    def read_into(self, view, at):  # zeros, which need no holder
        pass

cut = geometry.Geometry(size_bytes, chunk_bytes)
subject = checkpoint_manifest.Subject(
    id, id, "p", id, chunk_map.UNKNOWN_OS_HASH, cut, 1, checkpoint_manifest.Consistency.CRASH, 1
)
before = checkpoint_manifest.Manifest.parse(checkpoint_manifest.build(subject, ()), "it")
with Disk(nbd_client.Export(path, "vda", pid, size_bytes), nbd_client.ALLOCATION, 60.0) as disk:
    free = rate_limit.RateLimit(0, threading.Event())
    taking = disk_capture.DiskCapture(disk, chunk_bytes, seal, Copies(), free, lambda: True)
    found = lambda: (one[:2] for one in disk.iter_extents() if one.flags & nbd_client.DIRTY)
    error = ""
    try:
        for _ in taking.iter_entries(disk_capture.ChangedRanges(before, found, lambda: ())):
            pass
    except disk_capture.DiskTooLarge as e:
        error = str(e)
with open("/proc/self/status") as file:  # ru_maxrss begins at what the parent had
    [used] = [int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM:")]
print(json.dumps([used, taking.read_bytes, taking.unread_bytes, error]))
"""


LARGEST = """
import json, os, pathlib, sys, threading
import libvirt
from acstor_checkpoint.capture import disk_capture, take_checkpoint, rate_limit, disk_states
from acstor_checkpoint.holders import holder_group, checkpoint_record
from acstor_checkpoint.cmd import checkpointd
from acstor_common.formats import checkpoint_manifest, checkpoint_encryption, chunk_map
from acstor_common.model import geometry, ids

def peak_bytes():  # ru_maxrss begins at what the parent had
    with open("/proc/self/status") as file:
        [used] = [int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM:")]
    return used

started_bytes = peak_bytes()
id = ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
known = disk_states.DiskStates(pathlib.Path(sys.argv[1]))
count, cut = checkpoint_manifest.MAX_ENTRIES, geometry.Geometry(2 << 40, 1 << 20)
state = disk_states.new_state(id, cut.chunk_bytes)
known.save(id, state)
seal = checkpoint_encryption.Seal(bytes.fromhex(state.key))

def saved(entries, number):
    crash = checkpoint_manifest.Consistency.CRASH
    subject = checkpoint_manifest.Subject(
        id, id, "p", id, chunk_map.UNKNOWN_OS_HASH, cut, 1, crash, number
    )
    made = checkpoint_manifest.build(subject, entries)
    return known.save_manifest(id, seal.close_manifest(made))

def named(chunk_no):
    return checkpoint_manifest.Entry(chunk_no, ids.Cid(os.urandom(31) + b"1"))

class Client:
    holder = ids.HostId("h2")
    def missing_chunks(self, disk, asked):
        return set()
    def retain_only(self, disk, part):
        kept.append(len(part.names))
        return 0

class Disk:
    size_bytes = cut.size_bytes

holders, kept = holder_group.HolderGroup(None, [Client()]), []

def take(name):
    before = known.read_manifest(id, state, name)
    rate = rate_limit.RateLimit(0, threading.Event())
    taking = disk_capture.DiskCapture(Disk(), cut.chunk_bytes, seal, holders, rate)
    return saved(taking.iter_entries(disk_capture.ChangedRanges(before, lambda: (), lambda: ())), 2)

first = saved(map(named, range(count)), 1)
second = take(first)
holders.retain_only(known.iter_needed(id, state, {first, second}))
print(json.dumps([started_bytes, peak_bytes() - started_bytes, len(kept), sum(kept)]))
"""
"""A disk of 2 TiB whose chunks of 1 MiB all differ from its image has the largest manifest."""


@pytest.mark.nightly
def test_largest_manifest_takes_at_most_twice_its_size_in_memory(tmp_path: pathlib.Path) -> None:
    """The daemon reads the last manifest, makes the next one, and drops unnamed chunks."""
    argv = [sys.executable, "-c", LARGEST, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    started, used, parts, stays = json.loads(done.stdout)
    print(f"{started >> 20} + {used >> 20} MiB, {stays} names stay, in {parts} parts")
    assert used < 2 * checkpoint_manifest.MAX_BYTES + SLACK_BYTES
    assert started + used < LIMIT_BYTES
    assert stays == (1 << 21) + 2


def status(cookie: int, _at: int, length: int) -> bytes:
    """Report that every second 64 KiB were written."""
    return nbd_server.reply(5, struct.pack(">I", 7) + PAIR * (length >> 17), cookie)


PAIR = struct.pack(">IIII", 1 << 16, 1, 1 << 16, 0)


@pytest.mark.parametrize(
    ("size_bytes", "chunk_bytes", "is_too_large"),
    [(2048 * GIB, 1 << 16, True), (256 * GIB, 1 << 20, False)],
)
def test_alternating_writes_of_a_large_disk_take_bounded_memory(
    tmp_path: pathlib.Path, size_bytes: int, chunk_bytes: int, is_too_large: bool
) -> None:
    with nbd_server.telling(tmp_path, size_bytes, status) as export:
        args = (export.path, export.pid, size_bytes, chunk_bytes)
        argv = [sys.executable, "-c", PROGRAM, *map(str, args)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    used, read_bytes, unread_bytes, error = json.loads(done.stdout)
    print(f"{size_bytes >> 30} GiB: {used >> 20} MiB, {error or 'all seen'}")
    assert used < LIMIT_BYTES
    if is_too_large:  # before any read
        assert "more than 128 GiB" in error and read_bytes == 0
    else:
        assert read_bytes + unread_bytes == size_bytes
