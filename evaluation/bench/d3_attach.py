# SPDX-License-Identifier: Apache-2.0
"""D3: the attach of an image of 20 GiB with distinct chunks.

A real agent opens the image's file in its mirror for the first time: it fetches the chunk map from
the source, checks it and maps it.  Meanwhile another guest reads 4 KiB at a time from a cached
image.  Each turn has a new agent.  The value is the median of the turns.  Comparisons are a copy of
the map to a file with a sync, and the anonymous memory that a second such image adds to the agent:
with the first one, the allocator also keeps the buffers of its map for later reads.
"""

import itertools
import os
import pathlib
import statistics
import tempfile
import time

from acstor_common.model import ids
from evaluation.bench import harness
from tests.fakes import dos_attacks
from tests.fakes import hosts
from tests.lab import local

GIBIBYTES = 20
TURNS = 5
LIFE_S = 120.0
CHUNKS = GIBIBYTES * dos_attacks.GIB // dos_attacks.CHUNK


@harness.measures("D3", "D3b")
def run(say: harness.Say) -> harness.Result:
    """Attach it by new agents in sequence."""
    turns: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="acstor-d3-") as text:
        folder = pathlib.Path(text)
        images = local.ImageFolder(folder / "images")
        large, other = (dos_attacks.large_image(images, GIBIBYTES, CHUNKS) for _ in range(2))
        for number in range(TURNS):
            figures = attach(folder / f"h{number}", images, large, other)
            figures["copy_of_map_s"] = copy(images.map_path(large), folder / "copy")
            say(", ".join(f"{name} {value:.3g}" for name, value in figures.items()))
            turns.append(figures)
    median = {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
    values = {"D3": median["attach_s"], "D3b": median["longest_read_ms"]}
    return harness.Result(values, {"turns": turns, "median": median})


def attach(
    folder: pathlib.Path, images: local.ImageFolder, large: ids.ImageId, other: ids.ImageId
) -> dict[str, float]:
    """Return the attach time, another guest's latencies, and each image's memory."""
    data = local.random_bytes(4 << 20)
    with hosts.running(folder, images, life_s=LIFE_S) as agent:
        cached = agent.image_path(images.add(data))
        if cached.read_bytes() != data:
            raise harness.CannotRun("the cached image has other bytes")
        rest = dos_attacks.reads(cached, data)
        memory_bytes = [agent.own_memory_bytes()]
        took_s: list[float] = []

        def open_large() -> None:
            began_s = time.perf_counter()
            os.close(os.open(agent.image_path(large), os.O_RDONLY))
            took_s.append(time.perf_counter() - began_s)

        beside = dos_attacks.reads_beside(cached, data, open_large)
        memory_bytes.append(agent.own_memory_bytes())
        os.close(os.open(agent.image_path(other), os.O_RDONLY))
        memory_bytes.append(agent.own_memory_bytes())
        first, next_one = ((b - a) / 2**20 for a, b in itertools.pairwise(memory_bytes))
        return {
            "attach_s": took_s[0],
            "longest_read_ms": 1e3 * max(beside),
            "longest_read_at_rest_ms": 1e3 * max(rest),
            "memory_of_first_mib": first,
            "memory_of_next_mib": next_one,
        }


def copy(source: pathlib.Path, target: pathlib.Path) -> float:
    """Return the time of a file copy with a sync."""
    began_s = time.perf_counter()
    with target.open("wb") as file:
        file.write(source.read_bytes())
        os.fsync(file.fileno())
    return time.perf_counter() - began_s
