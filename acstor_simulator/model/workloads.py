# SPDX-License-Identifier: Apache-2.0
"""Guests' workloads besides booting: three of Filebench's (Wu 2017, section 5.5).

A web server reads whole files steadily and appends to a log; a web proxy reads little at a time, in
bursts, and stores it; a video server reads long files and writes as much.  Guests choose files at
random from a data set in the image, and write to their host's disk.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

from acstor_agent.engine import chunk_ref
from acstor_simulator.model import boot_traces

BOOT = "boot"
DATA_SETS = 2  # size of an image's data set, in multiples of the chunks that a guest reads
DISK_BYTES_S = 50e6  # rate of writes and of reads of written data


class Workload(NamedTuple):
    """The shape of a workload."""

    file_chunks: int  # chunks of one file, read in order
    used: float  # share of a chunk that the guest uses
    pause_s: float  # mean pause
    burst: int  # mean number of files between two pauses
    local: float  # bytes written or read locally for each byte read of the image


WORKLOADS = {
    "web server": Workload(file_chunks=8, used=1.0, pause_s=0.02, burst=1, local=0.1),
    "web proxy": Workload(file_chunks=1, used=0.25, pause_s=0.4, burst=20, local=0.2),
    "video server": Workload(file_chunks=64, used=1.0, pause_s=0.0, burst=1, local=3.0),
}


class Task(NamedTuple):
    """The reads of one guest; ``used_bytes`` is all that it reads and writes."""

    reads: Sequence[boot_traces.Read]
    used_bytes: float


def task(workload: str, image: boot_traces.TracedImage, chunks: int, rng: random.Random) -> Task:
    """Return a guest's part of a workload, with ``chunks`` reads of the image.

    >>> image = boot_traces.make_traced_image(0, 64, 0.0, 1)
    >>> made = task("web proxy", image, 32, random.Random(1))
    >>> len(made.reads), round(made.used_bytes / (32 * 16384), 6)
    (32, 1.2)
    """
    if workload == BOOT:
        return Task(image.reads, sum(read.chunk.length for read in image.reads))
    shape = WORKLOADS[workload]
    files = range(0, len(image.reads) - shape.file_chunks + 1, shape.file_chunks)
    reads: list[boot_traces.Read] = []
    while len(reads) < chunks:
        first = rng.choice(files)
        wanted = [read.chunk for read in image.reads[first : first + shape.file_chunks]]
        reads += _read(wanted[: chunks - len(reads)], shape, rng)
    used_bytes = shape.used * sum(read.chunk.length for read in reads)
    return Task(reads, used_bytes * (1 + shape.local))


def _read(
    wanted: Sequence[chunk_ref.ChunkRef], shape: Workload, rng: random.Random
) -> list[boot_traces.Read]:
    pause_s = 0.0
    if shape.pause_s and rng.random() < 1 / shape.burst:
        pause_s = rng.expovariate(1 / shape.pause_s) if shape.burst > 1 else shape.pause_s
    local_s = [shape.local * shape.used * chunk.length / DISK_BYTES_S for chunk in wanted]
    local_s[0] += pause_s
    return [boot_traces.Read(*read) for read in zip(local_s, wanted, strict=True)]
