# SPDX-License-Identifier: Apache-2.0
"""P9d: the rate of pre-hashing a compressed qcow2, over converting it to raw.

An image of machine code, noise and zeros, in page cache.  Both ways have the same cores and take
turns, under the same machine load; the value is the median of the ratios of their rates.
``qemu-img convert`` writes to page cache; pre-hashing names all chunks, and computes Glance's
SHA-512 of the file.
"""

import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

from acstor_common.formats import chunk_map
from acstor_common.formats import layout
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_glance.prepare import prehash
from evaluation.bench import harness

DISK_BYTES = 1024 * geometry.MIB
TURNS = int(os.environ.get("ACSTOR_BENCH_TURNS", "5"))
IMAGE_ID = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
SHA512 = chunk_map.OsHash("sha512", b"")
CODECS = ("zlib", "zstd")


class Took(NamedTuple):
    """Wall time and processor time of some work."""

    wall_s: float
    cpu_s: float

    def __str__(self) -> str:
        return f"{self.wall_s:.2f} s ({self.cpu_s:.2f} s of processors)"


@harness.measures("P9d")
def run(say: harness.Say) -> harness.Result:
    """Do both in turns with each codec; the value is that of deflate, the usual one."""
    with tempfile.TemporaryDirectory(prefix="acstor-p9d-") as folder:
        source = pathlib.Path(folder) / "source.raw"
        say(f"writing a disk of {DISK_BYTES >> 20} MiB")
        write_disk(source)
        found = {codec: compare(source, codec, say) for codec in CODECS}
    details = {"disk_bytes": DISK_BYTES, "threads": prehash.default_workers(), "codecs": found}
    return harness.Result({"P9d": statistics.median(found["zlib"]["ratios"])}, details)


def compare(source: pathlib.Path, codec: str, say: harness.Say) -> dict[str, object]:
    """Return the times of both ways with one codec, and their ratios."""
    image = source.with_suffix(f".{codec}.qcow2")
    tool("-c", "-m", "8", "-W", "-O", "qcow2", "-o", f"compression_type={codec}", source, image)
    turns: list[tuple[Took, Took]] = []
    for _ in range(TURNS):
        turns.append((took(convert, image), took(make_map, image)))
        say(f"{codec}: qemu-img convert {turns[-1][0]}, pre-hash {turns[-1][1]}")
    stored_bytes = image.stat().st_size
    image.unlink()
    return {
        "stored_bytes": stored_bytes,
        "convert": [converting._asdict() for converting, _ in turns],
        "prehash": [hashing._asdict() for _, hashing in turns],
        "ratios": [converting.wall_s / hashing.wall_s for converting, hashing in turns],
    }


def write_disk(path: pathlib.Path) -> None:
    """Fill a file with typical disk content: code, noise, and a quarter of zeros."""
    code = pathlib.Path(sys.executable).resolve().read_bytes()
    dice = random.Random(9)
    with path.open("wb") as file:
        while file.tell() < DISK_BYTES:
            kind = dice.randrange(8)
            length = dice.randrange(1, 64) * 4096
            if kind < 2:
                file.seek(length, os.SEEK_CUR)
            elif kind == 2:
                file.write(dice.randbytes(length))
            else:
                at = dice.randrange(len(code) - 4096)
                file.write(code[at : at + length])
        file.truncate(DISK_BYTES)


def took(work: Callable[[pathlib.Path], None], image: pathlib.Path) -> Took:
    """Return the times of some work."""
    cpu_s, wall_s = cpu_seconds(), time.perf_counter()
    work(image)
    return Took(time.perf_counter() - wall_s, cpu_seconds() - cpu_s)


def cpu_seconds() -> float:
    """Return the processor time of this process and of its ended children."""
    return sum(os.times()[:4])


def convert(image: pathlib.Path) -> None:
    """Convert the image with qemu-img's default coroutines and threads."""
    raw = image.with_suffix(".raw")
    tool("-f", "qcow2", "-O", "raw", image, raw)
    raw.unlink()


def make_map(image: pathlib.Path) -> None:
    """Make the image's chunk map, with Glance's hash."""
    prehash.prehash(
        image,
        image.with_suffix(".acmap"),
        IMAGE_ID,
        disk_format=layout.DiskFormat.QCOW2,
        os_hash=SHA512,
    )


def tool(*words: object) -> None:
    """Run ``qemu-img convert``.

    :raises harness.CannotRun: it is not installed
    """
    try:
        subprocess.run(["qemu-img", "convert", *map(str, words)], check=True)
    except FileNotFoundError as exc:
        raise harness.CannotRun("qemu-img is not installed") from exc
