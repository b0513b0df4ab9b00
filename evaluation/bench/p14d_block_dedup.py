# SPDX-License-Identifier: Apache-2.0
"""P14d: the disk space of three chained snapshots, and reads of the last one.

The base is an image of 2 GiB, half of it random bytes.  Each snapshot has 100 MB of changes, is
flattened over the previous one as the gateway does, and written to an XFS in a file, whose loop
device has no page cache of its own.  Then the listener's code deduplicates each with the previous
one.

P14d is the used space of the three after deduplication over that before: as raw files and as qcow2
files.  P14e reads the third one in pieces at random places, as a boot does, uncached, over the same
reads of a copy without shared blocks.  P14f does so while this image is being deduplicated, over
reads without that.
"""

import contextlib
import itertools
import multiprocessing
import os
import pathlib
import random
import signal
import statistics
import time
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import TypeVar

from acstor_common.model import geometry
from acstor_glance import conf as glance_conf
from acstor_glance.dedup import block_dedup
from acstor_glance.dedup import common_ranges
from evaluation.bench import harness
from tests.fakes import composed_lines
from tests.fakes import file_systems
from tests.fakes import qcow2_corpus
from tests.lab import runs

MIB = geometry.MIB
T = TypeVar("T")
TURNS = int(os.environ.get("ACSTOR_BENCH_TURNS", "15"))
DISK_MIB, DATA_MIB, CHANGED_MIB = 2048, 1024, 96
STORE_BYTES = 14 << 30
SNAPSHOTS = 3
READS = 800
PARTS = 20
PAUSE_S = 0.15
"""Until a resumed process has caught up, and a stopped one has stopped."""
READ_BYTES = (4096, 16384, 65536, 131072)
[MIB_S] = (opt.default for opt in glance_conf.OPTS if opt.name == "block_dedup_rate_mib_s")
FORMATS = ("raw", "qcow2")


class Line(NamedTuple):
    """A chain of snapshots.

    :param whole_bytes: their space before deduplication
    :param shared_bytes: their space afterwards
    :param seconds: duration of each deduplication, without rate limit
    """

    images: list[composed_lines.Image]
    whole_bytes: int
    shared_bytes: int
    seconds: list[float]


@harness.measures("P14d", "P14e", "P14f")
def run(say: harness.Say) -> harness.Result:
    """Make a chain of each format, deduplicate it, and read its end."""
    if why := file_systems.why_not() or ("" if qcow2_corpus.HAS_TOOLS else "no qemu-utils"):
        raise harness.CannotRun(why)
    values: dict[str, list[float]] = {"P14d": [], "P14e": [], "P14f": []}
    details: dict[str, object] = {}
    for disk_format in FORMATS:
        with (
            runs.Run() as folders,
            file_systems.mounted(folders.folder, STORE_BYTES, direct=True) as store,
        ):
            line = make(store, disk_format, say)
            reads, busy = read(line, say)
        values["P14d"].append(line.shared_bytes / line.whole_bytes)
        for bench_id, found in (("P14e", reads), ("P14f", busy)):
            values[bench_id].append(found["ratio"])
        details[disk_format] = {
            "whole_bytes": line.whole_bytes,
            "shared_bytes": line.shared_bytes,
            "sharing_s": line.seconds,
            "reads": reads,
            "reads_while_sharing": busy,
        }
    return harness.Result({name: tuple(found) for name, found in values.items()}, details)


def make(store: pathlib.Path, disk_format: str, say: harness.Say) -> Line:
    """Make the base and its chain of snapshots, and deduplicate them."""
    raw = store / "base"
    with raw.open("wb") as file:
        for _ in range(DATA_MIB):
            file.write(os.urandom(MIB))
            file.seek(MIB, os.SEEK_CUR)
        file.truncate(DISK_MIB * MIB)
    line = [composed_lines.stored(raw, "raw", store)]
    before = file_systems.used_bytes(store)
    for number in range(SNAPSHOTS):
        path = store / f"snapshot{number}"
        line.append(
            composed_lines.snapshot(line[-1], path, disk_format, store, list(writes(number)))
        )
        say(f"{disk_format}: snapshot {number + 1} of {SNAPSHOTS} has {path.stat().st_size} bytes")
    whole_bytes = file_systems.used_bytes(store) - before
    seconds = []
    for base, image in itertools.pairwise(line):
        began_s = time.monotonic()
        share(image, base, 1 << 50)
        seconds.append(time.monotonic() - began_s)
    shared_bytes = file_systems.used_bytes(store) - before
    say(f"{disk_format}: {whole_bytes} bytes became {shared_bytes}, in {seconds} s")
    return Line(line, whole_bytes, shared_bytes, seconds)


def writes(number: int) -> Iterator[str]:
    """Yield QEMU's writes for a snapshot: 2 MiB at places all over the disk."""
    places = random.Random(number).sample(range(DISK_MIB // 2), CHANGED_MIB // 2)
    for place in sorted(places):
        yield f"write -P {number + 1} {place * 2 * MIB} {2 * MIB}"


def share(image: composed_lines.Image, base: composed_lines.Image, bytes_s: int) -> int:
    """Deduplicate an image with its base, as the listener does."""
    with (
        image.chunk_map() as own_map,
        base.chunk_map() as base_map,
        block_dedup.open_stored_file(image.path, image.path.stat().st_size) as own,
        block_dedup.open_stored_file(base.path, base.path.stat().st_size) as below,
    ):
        ranges = common_ranges.find_ranges(own_map, base_map, block_dedup.block_bytes(own))
        return block_dedup.share_blocks(own, below, ranges, bytes_s, _wait)


def _wait(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def share_on(image: composed_lines.Image, base: composed_lines.Image, bytes_s: int) -> None:
    """Deduplicate repeatedly, until this process is killed."""
    while True:
        share(image, base, bytes_s)


def read(line: Line, say: harness.Say) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the last snapshot and a copy in turns; then during deduplication."""
    base, image = line.images[-2:]
    copy = image.path.with_name("copy")
    file_systems.run("cp", "--reflink=never", "--sparse=auto", image.path, copy)
    os.sync()
    quiet: dict[str, list[float]] = {"shared": [], "copy": []}
    for turn in range(TURNS):
        for name, seconds in zip(quiet, seconds_of((image.path, copy), turn), strict=True):
            quiet[name].append(seconds)
    say(f"{image.disk_format}: shared over a copy: {ratio(quiet, 'shared', 'copy')}")
    busy: dict[str, list[float]] = {"busy": [], "idle": []}
    with sharing(image, base) as process:
        for turn in range(TURNS):
            for name, seconds in busy_and_idle(image.path, process, turn).items():
                busy[name].append(seconds)
    say(f"{image.disk_format}: while its blocks are deduplicated: {ratio(busy, 'busy', 'idle')}")
    return (
        {"ratio": ratio(quiet, "shared", "copy"), **quiet},
        {"ratio": ratio(busy, "busy", "idle"), "mib_s": MIB_S, **busy},
    )


def busy_and_idle(path: pathlib.Path, process: int, turn: int) -> dict[str, float]:
    """Read at random while a process deduplicates and while it is stopped, in turns."""
    took = {"busy": 0.0, "idle": 0.0}
    for part in range(PARTS):
        for name, number in in_turn(part, [("busy", signal.SIGCONT), ("idle", signal.SIGSTOP)]):
            os.kill(process, number)
            time.sleep(PAUSE_S)
            [seconds] = seconds_of((path,), turn * PARTS + part, READS // PARTS)
            took[name] += seconds
    return took


def in_turn(turn: int, both: list[T]) -> list[T]:
    """Return both ways, each first in every second turn."""
    return both if turn % 2 else both[::-1]


def ratio(took: dict[str, list[float]], one: str, other: str) -> float:
    """Return the median, over turns, of one way's time over the other's."""
    return statistics.median(a / b for a, b in zip(took[one], took[other], strict=True))


@contextlib.contextmanager
def sharing(image: composed_lines.Image, base: composed_lines.Image) -> Iterator[int]:
    """Deduplicate an image repeatedly in a process; yield its pid."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=share_on, args=(image, base, MIB_S * MIB), daemon=True)
    process.start()
    try:
        time.sleep(5.0)  # it has started
        assert process.pid
        yield process.pid
    finally:
        process.kill()
        process.join()


def seconds_of(paths: Sequence[pathlib.Path], seed: int, reads: int = READS) -> list[float]:
    """Return the times of uncached reads at places all over some files.

    Each place is read in one file after the other, under the same machine load.
    """
    dice = random.Random(seed)
    last = paths[0].stat().st_size // max(READ_BYTES) - 1
    took = [0.0] * len(paths)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(path.open("rb")).fileno() for path in paths]
        for file in files:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        for number in range(reads):
            place, length = dice.randrange(last) * max(READ_BYTES), dice.choice(READ_BYTES)
            for which in in_turn(number, list(range(len(files)))):
                began_s = time.monotonic()
                os.pread(files[which], length, place)
                took[which] += time.monotonic() - began_s
    return took
