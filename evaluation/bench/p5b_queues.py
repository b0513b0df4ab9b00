# SPDX-License-Identifier: Apache-2.0
"""P5b: 4 KiB random reads of cached bytes at queue depths 1 and 32.

fio reads the same image for RUN_S as a plain file in the page cache, from a loop device over it,
over NBD from qemu-nbd, from bare pyfuse3 and from an agent's mirror (``disk_policy`` none, after
boots), past the page cache of the mounts and the device; in turns.  The median of TURNS counts.
"""

import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

from matplotlib import figure

from acstor_common.model import geometry
from evaluation.bench import harness
from evaluation.bench import p5_hits
from tests.fakes import file_systems
from tests.lab import local
from tests.lab import runs

IMAGE_BYTES = 256 * geometry.MIB
DEPTHS = (1, 32)
TURNS = 3
RUN_S = 3
DEADLINE_S = 60.0
MIRROR, FLOOR = "acstor", "bare pyfuse3"
Figures = dict[str, float]


@harness.measures("P5b")
def run(say: harness.Say) -> harness.Result:
    """Run fio with each way in turns."""
    for tool in ("fio", "qemu-nbd"):
        if shutil.which(tool) is None:
            raise harness.CannotRun(f"{tool} is not installed")
    measured: dict[tuple[str, int], list[Figures]] = {}
    with tempfile.TemporaryDirectory(prefix="acstor-p5b-") as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        images = local.ImageFolder(folder / "images")
        image_id = images.add(local.random_bytes(IMAGE_BYTES))
        image = images.path(image_id)
        agent = stack.enter_context(local.agent(folder / "h1", images, **p5_hits.AGENTS[MIRROR]))
        agent.wait_ready()
        bare = stack.enter_context(p5_hits.bare(image, folder / "bare"))
        socket = stack.enter_context(nbd(image, folder / "nbd"))
        loop = stack.enter_context(file_systems.loop_device(image, "--read-only"))
        direct = {"loop": loop, FLOOR: bare, MIRROR: agent.image_path(image_id)}
        for path in (image, bare, direct[MIRROR]):
            path.read_bytes()
        ways = {
            "plain file": [
                "--ioengine=io_uring",
                f"--filename={image}",
            ],  # libaio would block on each
            "qemu-nbd": ["--ioengine=nbd", f"--uri=nbd+unix:///?socket={socket}"],
            **{
                way: ["--ioengine=libaio", "--direct=1", f"--filename={path}"]
                for way, path in direct.items()
            },
        }
        for _ in range(TURNS):
            for way, options in ways.items():
                for depth in DEPTHS:
                    measured.setdefault((way, depth), []).append(fio(options, depth))
    medians = {key: medians_of(turns) for key, turns in measured.items()}
    for (way, depth), found in medians.items():
        say(
            f"{way}, {depth} at a time: {found['us']:.1f} us, p99 {found['p99_us']:.1f} us, "
            f"{found['iops']:.0f} reads a second"
        )
    values = tuple(
        medians[MIRROR, depth]["iops"] / medians[FLOOR, depth]["iops"] for depth in DEPTHS
    )
    details = {f"{way}, {depth}": found for (way, depth), found in medians.items()}
    return harness.Result({"P5b": values}, details, lambda picture: draw(picture, medians))


@contextlib.contextmanager
def nbd(image: pathlib.Path, socket: pathlib.Path) -> Iterator[pathlib.Path]:
    """Serve an image by qemu-nbd on a socket, from the page cache."""
    argv = ["qemu-nbd", "--read-only", "--persistent", "--shared=64", "--format=raw"]
    process = subprocess.Popen([*argv, f"--socket={socket}", str(image)])
    try:
        runs.wait_for(socket.exists, 10, "qemu-nbd", str)
        yield socket
    finally:
        process.terminate()
        process.wait(10)


def fio(options: list[str], depth: int) -> Figures:
    """Read at random for RUN_S; return mean and p99 latency in us, from submission, and the rate.

    :raises harness.CannotRun: fio failed
    """
    argv = ["fio", "--name=p5b", "--rw=randread", "--bs=4k", f"--size={IMAGE_BYTES}", *options]
    argv += [f"--iodepth={depth}", f"--runtime={RUN_S}", "--time_based", "--readonly"]
    argv += ["--invalidate=0", "--lat_percentiles=1", "--output-format=json"]
    env = dict(os.environ, LC_ALL="C")
    done = subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE_S, env=env)
    if done.returncode:
        raise harness.CannotRun(f"fio failed: {done.stderr.strip()[-300:]}")
    found: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["read"]
    latency = found["lat_ns"]
    return {
        "us": latency["mean"] / 1e3,
        "p99_us": latency["percentile"]["99.000000"] / 1e3,
        "iops": found["iops"],
    }


def medians_of(turns: list[Figures]) -> Figures:
    """Return the median of each figure.

    >>> medians_of([{"us": 1.0}, {"us": 9.0}, {"us": 2.0}])
    {'us': 2.0}
    """
    return {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}


def draw(picture: figure.Figure, medians: dict[tuple[str, int], Figures]) -> None:
    """Draw reads per second of each way, a panel for each depth."""
    for axes, depth in zip(picture.subplots(1, len(DEPTHS)), DEPTHS, strict=True):
        found = {way: figures["iops"] for (way, its), figures in medians.items() if its == depth}
        bars = axes.bar(list(found), list(found.values()))
        axes.bar_label(bars, fmt="%.0f")
        axes.set(title=f"{depth} at a time", ylabel="4 KiB reads a second")
        axes.tick_params(axis="x", rotation=20)
