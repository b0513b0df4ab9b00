# SPDX-License-Identifier: Apache-2.0
"""P9: the rate at which one core pre-hashes an image in the page cache.

The image is random, so no chunk is zero and every byte is hashed.  Comparisons in the same run and
from the same file: plain reading, SHA-1 and SHA-256 of the same chunks, each with the same reads
into one reused buffer.
"""

import hashlib
import os
import pathlib
import tempfile
import time
from collections.abc import Callable

from matplotlib import figure

from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_glance.prepare import prehash
from evaluation.bench import harness

IMAGE_BYTES = 1024 * geometry.MIB
REPEATS = 3
IMAGE_ID = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")


@harness.measures("P9")
def run(say: harness.Say) -> harness.Result:
    """Hash one random image in several ways; the best of some repeats counts."""
    with tempfile.TemporaryDirectory(prefix="acstor-p9-") as folder:
        image = pathlib.Path(folder) / "image.raw"
        say(f"writing {IMAGE_BYTES >> 20} MiB of random bytes")
        write_image(image)
        ways: dict[str, Callable[[], object]] = {
            "acstor-prehash": lambda: prehash.prehash(
                image, image.with_suffix(".acmap"), IMAGE_ID, workers=1
            ),
            "read only": lambda: read_chunks(image, lambda chunk: None),
            "SHA-1": lambda: read_chunks(image, lambda chunk: hashlib.sha1(chunk).digest()),
            "SHA-256": lambda: read_chunks(image, lambda chunk: hashlib.sha256(chunk).digest()),
        }
        rates = {name: best_rates(name, work, say) for name, work in ways.items()}
    per_core = rates["acstor-prehash"]["bytes_per_cpu_second"] / 1e9
    details = {"image_bytes": IMAGE_BYTES, "repeats": REPEATS, "rates": rates}
    return harness.Result({"P9": per_core}, details, lambda picture: draw(picture, rates))


def write_image(path: pathlib.Path) -> None:
    """Fill the file with random bytes, which stay in page cache."""
    with path.open("wb") as file:
        for _ in range(IMAGE_BYTES // (16 * geometry.MIB)):
            file.write(os.urandom(16 * geometry.MIB))


def read_chunks(path: pathlib.Path, use: Callable[[memoryview], object]) -> None:
    """Read the file as pre-hashing does and pass each chunk to ``use``."""
    window = memoryview(bytearray(prehash.BUFFER_SIZES.read))
    size = geometry.DEFAULT_CHUNK_BYTES
    chunks = [window[at : at + size] for at in range(0, len(window), size)]
    with path.open("rb", buffering=0) as file:
        while file.readinto(window):
            for chunk in chunks:
                use(chunk)


def best_rates(name: str, work: Callable[[], object], say: harness.Say) -> dict[str, float]:
    """Return bytes per second of CPU and of wall time, the best of some repeats each."""
    cpu_s: list[float] = []
    wall_s: list[float] = []
    for _ in range(REPEATS):
        cpu, wall = time.process_time(), time.perf_counter()
        work()
        cpu_s.append(time.process_time() - cpu)
        wall_s.append(time.perf_counter() - wall)
    rates = {
        "bytes_per_cpu_second": IMAGE_BYTES / min(cpu_s),
        "bytes_per_second": IMAGE_BYTES / min(wall_s),
    }
    say(
        f"{name}: {rates['bytes_per_cpu_second'] / 1e9:.2f} GB per second of processor time, "
        f"{rates['bytes_per_second'] / 1e9:.2f} GB per second"
    )
    return rates


def draw(picture: figure.Figure, rates: dict[str, dict[str, float]]) -> None:
    """Draw the rates per core as bars, and the target."""
    axes = picture.subplots()
    per_core = [rate["bytes_per_cpu_second"] / 1e9 for rate in rates.values()]
    bars = axes.bar(list(rates), per_core, color=["tab:green", *["tab:gray"] * (len(rates) - 1)])
    axes.bar_label(bars, fmt="%.1f")
    axes.axhline(*harness.bounds("P9"), color="tab:red", linestyle="--", label="target")
    axes.set(title="One core, image in page cache, 64 KiB chunks", ylabel="GB/s per core")
    axes.legend()
