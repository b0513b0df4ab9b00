# SPDX-License-Identifier: Apache-2.0
"""P9c: the time of pre-hashing with Glance's own hash, over that hash alone.

A random image in page cache.  Both ways take turns, under the same machine load; the value is the
median of the ratios of the turns.  The hash alone reads like ``hashlib.file_digest``.
"""

import hashlib
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable

from acstor_common.formats import chunk_map
from acstor_glance.prepare import prehash
from evaluation.bench import harness
from evaluation.bench import p9_prehash

ALGORITHM = "sha512"
TURNS = int(os.environ.get("ACSTOR_BENCH_TURNS", "5"))


@harness.measures("P9c")
def run(say: harness.Say) -> harness.Result:
    """Hash one image both ways in turns."""
    with tempfile.TemporaryDirectory(prefix="acstor-p9c-") as folder:
        image = pathlib.Path(folder) / "image.raw"
        say(f"writing {p9_prehash.IMAGE_BYTES >> 20} MiB of random bytes")
        p9_prehash.write_image(image)
        value = alone(image)
        both_s, alone_s, ratios = [], [], []
        for _ in range(TURNS):
            both_s.append(seconds(lambda: both(image, value)))
            alone_s.append(seconds(lambda: alone(image)))
            ratios.append(both_s[-1] / alone_s[-1])
            say(f"both {both_s[-1]:.2f} s, {ALGORITHM} alone {alone_s[-1]:.2f} s")
    details = {
        "image_bytes": p9_prehash.IMAGE_BYTES,
        "algorithm": ALGORITHM,
        "threads": prehash.default_workers(),
        "both_s": both_s,
        "alone_s": alone_s,
        "ratios": ratios,
    }
    return harness.Result({"P9c": statistics.median(ratios)}, details)


def both(image: pathlib.Path, value: bytes) -> None:
    """Make the chunk map of the image and check its hash."""
    os_hash = chunk_map.OsHash(ALGORITHM, value)
    prehash.prehash(image, image.with_suffix(".acmap"), p9_prehash.IMAGE_ID, os_hash=os_hash)


def alone(image: pathlib.Path) -> bytes:
    """Return the image's hash."""
    with image.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, ALGORITHM).digest()


def seconds(work: Callable[[], object]) -> float:
    """Return the duration of some work."""
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s
