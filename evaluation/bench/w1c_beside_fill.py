# SPDX-License-Identifier: Apache-2.0
"""W1c: a guest's reads after its boot, while its image is filled, against a local file.

A host with a link of 100 Mbit/s to the image server.  The guest's boot reads the first part of an
image; then the rest is filled in the background.  Meanwhile the guest reads 4 KiB of what it has
booted with O_DIRECT, at an even rate, and the same bytes of a raw local file in between.
W1c is the ratio of the 99th percentiles.
"""

import contextlib
import mmap
import os
import pathlib
import random
import statistics
import time

from acstor_common.model import geometry
from evaluation.bench import collective
from evaluation.bench import harness
from evaluation.bench import w1_hydration
from tests.lab import local

IMAGE_BYTES = 1024 * geometry.MIB
BOOT_BYTES = 64 * geometry.MIB
BLOCK_BYTES = 4096
BETWEEN_READS_S = 0.01
MEASURED_S = 45.0  # the link needs 80 s for the rest of the image
WAYS = ("local file", "acstor")
TITLE = "A guest's reads of 4 KiB while its image is filled"


@harness.measures("W1c")
def run(say: harness.Say) -> harness.Result:
    """Read both files in turns during the fill."""
    with collective.images(local.random_bytes(IMAGE_BYTES)) as images:
        cloud, image_id = collective.Cloud(1, w1_hydration.LINK_MBIT, images), images.ids[0]
        with cloud.running(**w1_hydration.OPTIONS), contextlib.ExitStack() as stack:
            agent = cloud.agents[0]
            paths = images.files.path(image_id), agent.image_path(image_id)
            fds = [os.open(path, os.O_RDONLY | os.O_DIRECT) for path in paths]
            for fd in fds:
                stack.callback(os.close, fd)
            boot(paths[1])
            w1_hydration.wait_filling(agent, image_id)
            before = w1_hydration.fill_status(agent, image_id)["remaining_bytes"]
            latencies = read_in_turns(fds)
            shown = w1_hydration.fill_status(agent, image_id)
    filled_bytes = before - shown["remaining_bytes"]
    if shown["state"] == "fully_cached" or not filled_bytes:
        raise harness.CannotRun(f"the fill did not run beside all reads: {shown}")
    p99_s = {way: statistics.quantiles(found, n=100)[98] for way, found in latencies.items()}
    say(f"{p99_s}, beside {filled_bytes / MEASURED_S / 1e6:.1f} MB/s")
    details = {
        "p99_s": p99_s,
        "median_s": {way: statistics.median(found) for way, found in latencies.items()},
        "reads": len(latencies["acstor"]),
        "filled_bytes_s": filled_bytes / MEASURED_S,
    }
    values: dict[str, harness.Value] = {"W1c": p99_s["acstor"] / p99_s["local file"]}
    return harness.Result(
        values, details, lambda picture: w1_hydration.draw(picture, latencies, TITLE)
    )


def boot(path: pathlib.Path) -> None:
    """Read the first part of an image."""
    with path.open("rb", buffering=0) as file:
        for _ in range(BOOT_BYTES // geometry.MIB):
            file.read(geometry.MIB)


def read_in_turns(fds: list[int]) -> dict[str, list[float]]:
    """Read random blocks of the booted part of both files; return the latencies."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    blocks = random.Random(1)
    buffers = [mmap.mmap(-1, BLOCK_BYTES) for _ in fds]
    due_s = time.monotonic()
    end_s = due_s + MEASURED_S
    while due_s < end_s:
        offset = blocks.randrange(BOOT_BYTES // BLOCK_BYTES) * BLOCK_BYTES
        for way, fd, buffer in zip(WAYS, fds, buffers, strict=True):
            began_s = time.perf_counter()
            os.preadv(fd, [buffer], offset)
            found[way].append(time.perf_counter() - began_s)
        if buffers[0][:] != buffers[1][:]:
            raise harness.CannotRun(f"wrong bytes at {offset}")
        due_s += BETWEEN_READS_S
        time.sleep(max(0.0, due_s - time.monotonic()))
    return found
