# SPDX-License-Identifier: Apache-2.0
"""P5: reads that hit the public cache, against bare pyfuse3 serving one file.

All serve the same bytes from page cache to one reader with O_DIRECT, in turns, under the same
machine load; each figure is the median of the turns' ratios.  The image's chunks are stored in
order of arrival, as on a host.

The figure is that of an agent after all boots, with disk policy ``none``.  Comparisons are agents
that record a boot, and agents with scheduled disk I/O: the overhead of each for a hit, which
uses neither.
"""

import contextlib
import mmap
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from matplotlib import figure

from acstor_common.model import geometry
from evaluation.bench import harness
from tests.lab import local
from tests.lab import runs
from tests.lab import tuned

IMAGE_BYTES = 256 * geometry.MIB
TURNS = 9
RANDOM_READS = 5000
SMALL, LARGE = 4096, geometry.MIB
LONG = {tuned.RECORD_IDLE_S: 600, tuned.RECORD_LONGEST_S: 600}
AGENTS: dict[str, dict[str, object]] = {
    "acstor": {"boot_memory_limit_bytes": 0, "disk_policy": "none"},
    "recording": {"constants": LONG, "disk_policy": "none"},
    "scheduling": {"boot_memory_limit_bytes": 0, "disk_policy": "pregather"},
}
"""The measured agents, by activity besides serving; ``acstor`` is the figure."""


@harness.measures("P5")
def run(say: harness.Say) -> harness.Result:
    """Read all files in turns."""
    with tempfile.TemporaryDirectory(prefix="acstor-p5-") as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        images = local.ImageFolder(folder / "images")
        say(f"making an image of {IMAGE_BYTES >> 20} MiB and reading it once through the agents")
        image_id = images.add(local.random_bytes(IMAGE_BYTES))
        paths = {"bare": stack.enter_context(bare(images.path(image_id), folder / "bare"))}
        for which, options in AGENTS.items():
            agent = stack.enter_context(local.agent(folder / which, images, **options))
            agent.wait_ready()
            paths[which] = agent.image_path(image_id)
        files = {which: os.open(path, os.O_RDONLY | os.O_DIRECT) for which, path in paths.items()}
        for fd in files.values():
            stack.callback(os.close, fd)
            sequential(fd)
        turns = [measure(files, seed, say) for seed in range(TURNS)]
    figures = {which: over_bare(turns, which) for which in AGENTS}
    for which, (latency, rate) in figures.items():
        say(f"{which}: {latency:.2f} times the latency of bare pyfuse3, {rate:.3f} times its rate")
    return harness.Result(
        {"P5": figures["acstor"]},
        {"figures": figures, "turns": turns},
        lambda picture: draw(picture, turns),
    )


def over_bare(turns: list[dict[str, dict[str, float]]], which: str) -> tuple[float, float]:
    """Return one agent's latency and rate over those of bare pyfuse3."""
    latency = statistics.median(t[which]["small_s"] / t["bare"]["small_s"] for t in turns)
    rate = statistics.median(t[which]["large_b_s"] / t["bare"]["large_b_s"] for t in turns)
    return latency, rate


@contextlib.contextmanager
def bare(path: pathlib.Path, mount_point: pathlib.Path) -> Iterator[pathlib.Path]:
    """Serve ``path`` by bare pyfuse3; yield the file to read."""
    mount_point.mkdir()
    argv = [sys.executable, "-m", "evaluation.bench.bare_fuse", str(path), str(mount_point)]
    process = subprocess.Popen(argv, cwd=harness.ROOT)
    try:
        runs.wait_for((mount_point / "file").exists, 10, "bare pyfuse3", str)
        yield mount_point / "file"
    finally:
        process.terminate()
        process.wait(10)


def measure(files: dict[str, int], seed: int, say: harness.Say) -> dict[str, dict[str, float]]:
    """Take one turn: read each file randomly and sequentially, in changing order."""
    turn = {}
    for which in sorted(files, reverse=bool(seed % 2)):
        began = time.perf_counter()
        randomly(files[which], seed)
        small_s = (time.perf_counter() - began) / RANDOM_READS
        began = time.perf_counter()
        sequential(files[which])
        turn[which] = {
            "small_s": small_s,
            "large_b_s": IMAGE_BYTES / (time.perf_counter() - began),
        }
    words = ", ".join(
        f"{which} {t['small_s'] * 1e6:.1f} us and {t['large_b_s'] / 1e9:.2f} GB/s"
        for which, t in sorted(turn.items())
    )
    say(f"turn {seed + 1} of {TURNS}: {words}")
    return turn


def randomly(fd: int, seed: int) -> None:
    """Read 4 KiB at random places."""
    rng = random.Random(seed)
    buffer = mmap.mmap(-1, SMALL)
    for _ in range(RANDOM_READS):
        os.preadv(fd, [buffer], rng.randrange(IMAGE_BYTES // SMALL) * SMALL)


def sequential(fd: int) -> None:
    """Read the whole file, 1 MiB at a time."""
    buffer = mmap.mmap(-1, LARGE)
    for offset in range(0, IMAGE_BYTES, LARGE):
        os.preadv(fd, [buffer], offset)


def draw(picture: figure.Figure, turns: list[dict[str, dict[str, float]]]) -> None:
    """Draw latency and rate of every turn."""
    left, right = picture.subplots(1, 2)
    for axes, key, scale, label in (
        (left, "small_s", 1e6, "4 KiB random read, us"),
        (right, "large_b_s", 1e-9, "1 MiB sequential reads, GB/s"),
    ):
        for which in ("bare", *AGENTS):
            axes.plot([t[which][key] * scale for t in turns], marker="o", label=which)
        axes.set(xlabel="turn", ylabel=label, ylim=(0, None))
        axes.legend()
