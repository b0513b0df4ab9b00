# SPDX-License-Identifier: Apache-2.0
"""The applications of Ling 2015, tables 1 and 3, as requests of guests' kernels.

From the paper: sysbench with 16 threads on 1 GB in 1 or 128 files, ext3 in guests of 12 GB on one
1 TB disk, requests up to 44 KiB, a ring of Xen.  From the documentation of sysbench and Linux
2.6.18: blocks of 16 KiB, 10,000 random requests, read-ahead of 128 KiB, a journal commit with each
fsync, one indirect block per 4 MiB of a file.  sysbench's threads take blocks from one common
sequence, so a sequential application is one stream; all threads share and disturb the file's
read-ahead state, so the next window is requested only when the last one is used up.

sysbench's source (sysbench 0.4, sb_fileio.c) defines the fsync calls: a sequential writer calls it
once at the end; a random one after each 100 requests, file by file, each from another one of its
16 threads, so at most 16 files are synced at a time.  No source gives the size of the pieces in
which the guest's kernel writes out sequential data: ``Writing`` has the assumption, so that its
effect can be measured.
"""

import dataclasses
import functools
import random
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence

from evaluation.bench import disk_simulation as sim

SECTOR = 512
KIB = 1024
MIB = 1024 * KIB
BLOCK = 16 * KIB
REQUEST = 44 * KIB
WINDOW = 128 * KIB
FILE_BYTES = 1024 * MIB
PIECE = 4 * MIB
THREADS = 16
RANDOM_REQUESTS = 10_000
FSYNC_BLOCKS = 100
BLOCK_THINK_S = 0.00005
"""Time per block of a sysbench thread, including its fetch by kernel and Xen."""
JOURNAL_BYTES = 32 * MIB
COMMIT_S = 5.0
REGIONS = tuple(int(start * 1e8) * SECTOR for start in (3.0012, 3.244, 3.4863, 3.738))
"""Start of the guests' disks: figure 1."""
FILES_AT = (1024 * MIB, 5 * 1024 * MIB)
"""Offsets of a guest's first and second application's files."""


@dataclasses.dataclass(frozen=True)
class Writing:
    """Timing of a guest's writes at the disk.

    :param piece: concurrent requests of sequential writes
    :param fsync_blocks: sequential writers call fsync after so many blocks, which then are the
        piece; 0: at the end
    :param group: blocks of random writes that are written together, before a journal commit
    """

    piece: int = 8
    fsync_blocks: int = 0
    group: int = THREADS

    @property
    def piece_bytes(self) -> int:
        return self.fsync_blocks * BLOCK or self.piece * REQUEST


AS_SYSBENCH = Writing()


def cut(offset: int, length: int, is_write: bool = False) -> list[sim.Access]:
    """Split a range into requests."""
    stop = offset + length
    return [
        sim.Access(at, min(REQUEST, stop - at), is_write) for at in range(offset, stop, REQUEST)
    ]


class Journal:
    """The guest's journal: a ring near the start of its disk."""

    def __init__(self, region: int) -> None:
        self._start = region + 16 * MIB
        self._at = 0

    def write(self, length: int) -> list[sim.Access]:
        at = self._at
        self._at = (at + length) % JOURNAL_BYTES
        return [sim.Access(self._start + at, length, is_write=True)]

    def commit(self) -> Iterator[list[sim.Access]]:
        """Yield the writes of an fsync: the changes, then the commit record."""
        yield self.write(12 * KIB)
        yield self.write(4 * KIB)


def sequential_read(
    rng: random.Random, start: int, journal: Journal, total: int, files: int
) -> sim.Steps:
    """SR: windows in sequence; files are 64 KiB apart."""
    for file_start, file_bytes in _files(start, total, files):
        for at in range(0, file_bytes, WINDOW):
            length = min(WINDOW, file_bytes - at)
            yield cut(file_start + at, length)
            yield sim.Think(length / BLOCK * BLOCK_THINK_S * rng.uniform(0.5, 1.5))


def sequential_write(
    rng: random.Random,
    start: int,
    journal: Journal,
    total: int,
    files: int,
    writing: Writing = AS_SYSBENCH,
) -> sim.Steps:
    """SW: write out the guest's memory in pieces, file by file."""
    for at, length in _pieces(start, total, files, writing.piece_bytes):
        yield sim.Think(length / BLOCK * BLOCK_THINK_S * rng.uniform(0.5, 1.5))
        yield cut(at, length, is_write=True)
        if writing.fsync_blocks:
            yield from journal.commit()
    yield from journal.commit()


def random_write(
    rng: random.Random,
    start: int,
    journal: Journal,
    total: int,
    files: int,
    writing: Writing = AS_SYSBENCH,
) -> sim.Steps:
    """RW: write an fsync's blocks in ascending order, in groups of files."""
    for _ in range(RANDOM_REQUESTS * total // FILE_BYTES // FSYNC_BLOCKS):
        yield sim.Think(FSYNC_BLOCKS * BLOCK_THINK_S * rng.uniform(0.5, 1.5))
        places = sorted(rng.sample(range(FILE_BYTES // BLOCK), FSYNC_BLOCKS))
        for first in range(0, FSYNC_BLOCKS, writing.group):
            group = places[first : first + writing.group]
            yield [sim.Access(start + place * BLOCK, BLOCK, is_write=True) for place in group]
            yield from journal.commit()


def _pieces(start: int, total: int, files: int, piece: int) -> Iterator[tuple[int, int]]:
    """Split files into pieces of a length."""
    for file_start, file_bytes in _files(start, total, files):
        for at in range(0, file_bytes, piece):
            yield file_start + at, min(piece, file_bytes - at)


def _files(start: int, total: int, files: int) -> Iterator[tuple[int, int]]:
    length = total // files
    for number in range(files):
        yield start + number * (length + 64 * KIB), length


def random_reads(seed: int, start: int, total: int, share: float = 1.0) -> list[sim.Steps]:
    """RR: 16 threads, each with one block at a time.

    :param share: of the requests
    """
    known: set[int] = set()
    count = int(RANDOM_REQUESTS * share * total / FILE_BYTES / THREADS)
    return [
        _random_reader(random.Random(f"{seed}-{number}"), start, known, count)
        for number in range(THREADS)
    ]


def _random_reader(rng: random.Random, start: int, known: set[int], count: int) -> sim.Steps:
    for _ in range(count):
        place = rng.randrange(FILE_BYTES // BLOCK) * BLOCK
        piece = place // PIECE
        if piece not in known:  # its indirect block is before it
            known.add(piece)
            yield [sim.Access(start + piece * PIECE, 4 * KIB)]
        yield [sim.Access(start + place, BLOCK)]
        yield sim.Think(BLOCK_THINK_S * rng.uniform(0.5, 1.5))


def commits(rng: random.Random, journal: Journal, region: int) -> sim.Steps:
    """The guest's journal every 5 s: inode timestamps, and the log files."""
    while True:
        yield sim.Think(COMMIT_S * rng.uniform(0.9, 1.1))
        yield from journal.commit()
        yield [sim.Access(region + rng.randrange(64, 4096) * 4 * KIB, 4 * KIB, is_write=True)]


Stream = Callable[[random.Random, int, Journal, int, int], sim.Steps]


def streams(writing: Writing) -> dict[str, tuple[Stream, int]]:
    """Return the single-stream applications, with their numbers of files."""
    in_order = functools.partial(sequential_write, writing=writing)
    return {
        "SR-M": (sequential_read, 128),
        "SR-S": (sequential_read, 1),
        "SW-M": (in_order, 128),
        "SW-S": (in_order, 1),
        "RW": (functools.partial(random_write, writing=writing), 128),
    }


RRW_READS = 0.6
"""Share of reads in sysbench's mixed mode."""


def applications(
    name: str,
    seed: int,
    start: int,
    journal: Journal,
    total: int,
    writing: Writing = AS_SYSBENCH,
) -> list[sim.Application]:
    """Return the threads of an application of table 1."""
    if name in (known := streams(writing)):
        make, files = known[name]
        return [sim.Application(name, make(random.Random(seed), start, journal, total, files))]
    if name == "RR":
        return [sim.Application(name, steps) for steps in random_reads(seed, start, total)]
    if name == "RRW":
        reads = random_reads(seed, start, total, RRW_READS)
        writes = random_write(
            random.Random(seed), start, journal, int(total * (1 - RRW_READS)), 128, writing
        )
        return [sim.Application(name, steps) for steps in (*reads, writes)]
    raise ValueError(f"there is no application {name}")


def guest(
    name: str,
    parts: Sequence[str],
    region: int,
    seed: int,
    total: int,
    files_at: Sequence[int] = FILES_AT,
    writing: Writing = AS_SYSBENCH,
) -> sim.Guest:
    """Return a guest with applications of table 1 and its journal.

    :param files_at: offsets of each application's files in the region
    """
    journal = Journal(region)
    found = [
        application
        for number, part in enumerate(parts)
        for application in applications(
            part, seed * 10 + number, region + files_at[number], journal, total, writing
        )
    ]
    background = commits(random.Random(f"{seed}-journal"), journal, region)
    found.append(sim.Application("journal", background, is_background=True))
    return sim.Guest(name, found)


FOUR = (("SR-M", "SR-S"), ("SW-M", "SW-S"), ("SR-M", "RRW"), ("RR", "RW"))
"""The four guests of table 1."""
MIXED = {
    "SRRR": ("SR-M", "RR"),
    "RRRR": ("RR", "RR"),
    "SWSW": ("SW-M", "SW-M"),
    "SWRW": ("SW-M", "RW"),
    "RWRW": ("RW", "RW"),
    "SWRR": ("SW-M", "RR"),
    "SRRW": ("SR-M", "RW"),
}
"""The seven guests of table 3."""


def four_guests(total: int = FILE_BYTES, writing: Writing = AS_SYSBENCH) -> list[sim.Guest]:
    """Return the guests of figure 6 and table 4."""
    return [
        guest(f"VM{number}", parts, region, number, total, writing=writing)
        for number, (parts, region) in enumerate(zip(FOUR, REGIONS, strict=True), 1)
    ]


def mixed_guest(
    name: str, total: int = FILE_BYTES, writing: Writing = AS_SYSBENCH
) -> list[sim.Guest]:
    """Return one guest of table 3, alone."""
    return [guest(name, MIXED[name], REGIONS[0], 1, total, writing=writing)]


BLOCK_BYTES = 64 * MIB
"""Of Hadoop's files."""
SCAN_SHARE = 0.2
"""Share of a query's reads that scan a part of a table."""


def sort_map(rng: random.Random, start: int, journal: Journal, blocks: int) -> sim.Steps:
    """A map task of a sort: reads a block, sorts it, writes it; blocks are random."""
    for block in rng.sample(range(32), blocks):
        yield from sequential_read(rng, start + block * BLOCK_BYTES, journal, BLOCK_BYTES, 1)
        yield sim.Think(rng.uniform(0.2, 0.4))
        spill = start + (32 + block) * BLOCK_BYTES
        yield from sequential_write(rng, spill, journal, BLOCK_BYTES, 1)


def query(rng: random.Random, start: int, reads: int) -> sim.Steps:
    """A TPC-H-like query: index reads of 8 KiB pages, with occasional scans."""
    for _ in range(reads):
        at = start + rng.randrange(2 * FILE_BYTES // (8 * KIB)) * 8 * KIB
        for part in range(8 if rng.random() < SCAN_SHARE else 1):
            yield cut(at + part * WINDOW, WINDOW if part else 8 * KIB)
        yield sim.Think(rng.uniform(0.5, 1.5) * BLOCK_THINK_S * 4)


def sort_guests(blocks: int, with_queries: int = 0) -> list[sim.Guest]:
    """Return four data nodes with two maps each; optionally a guest with two queries."""
    found = []
    for number, region in enumerate(REGIONS, 1):
        journal = Journal(region)
        maps = [
            sim.Application(
                "sort",
                sort_map(random.Random(number * 10 + at), region + files, journal, blocks),
            )
            for at, files in enumerate(FILES_AT)
        ]
        found.append(sim.Guest(f"VD{number}", maps))
    if with_queries:
        region = REGIONS[-1] + 12 * 1024 * MIB
        queries = [
            sim.Application(name, query(random.Random(name), region + files, with_queries))
            for name, files in zip(("q6", "q19"), FILES_AT, strict=True)
        ]
        found.append(sim.Guest("TPCH", queries))
    return found
