# SPDX-License-Identifier: Apache-2.0
"""W1: the time to cache a used image completely, and its cost for a guest's reads.

Three hosts on one ring, links of one rate.  Two of them have all images; the third opens one, as an
instance does, reads nothing, and fills it in the background.  W1 is the time until the image is
fully cached, from the end of its boot, over the link time of the bytes missing then: the host is
the home of a third, which it received while the others filled theirs.

Then a guest of the third host reads chunks of another image, each once, at an even rate, while a
second image is filled and while its fill is paused, in turns.  W1a is the 99th percentile of the
reads' latency during the fill over that during the pauses.
"""

import itertools
import mmap
import os
import random
import statistics
import time
from collections.abc import Iterator
from typing import Any

from matplotlib import figure

from acstor_common.model import geometry
from evaluation.bench import collective
from evaluation.bench import harness
from tests.lab import agents
from tests.lab import local
from tests.lab import runs
from tests.lab import tuned

HOSTS = 3
TAKER = 0
LINK_MBIT = 100
SEEDING_MBIT = 2000
PAYLOAD = 1448 / 1514  # of each Ethernet frame
W1_BYTES = 2048 * geometry.MIB
W1A_BYTES = 1152 * geometry.MIB
GUEST_BYTES = 192 * geometry.MIB
READ_BYTES = geometry.DEFAULT_CHUNK_BYTES
BOOT_S = 2.0
BETWEEN_READS_S = 0.05
TITLE = "A guest's reads of 64 KiB while another image is filled, or its fill paused"
TURNS, TURN_S = 7, 8.0
DEADLINE_S, FILLING_DEADLINE_S = 1200.0, 120.0
OPTIONS = {
    "cache_limit_bytes": 4096 * geometry.MIB,
    "traffic_interfaces": "eth0",
    "link_mbit": LINK_MBIT,
    "constants": {tuned.BOOT_IDLE_S: BOOT_S, tuned.BOOT_LONGEST_S: BOOT_S},
    "keep_images": "host",
}


@harness.measures("W1", "W1a")
def run(say: harness.Say) -> harness.Result:
    """Let one of three hosts fill images."""
    sizes = (W1_BYTES, W1A_BYTES, GUEST_BYTES)
    parts = (local.random_bytes(size, seed) for seed, size in enumerate(sizes))
    with collective.images(*parts) as images:
        cloud = collective.Cloud(HOSTS, SEEDING_MBIT, images, [range(HOSTS)])
        with cloud.running(**OPTIONS):
            for number, image_id in itertools.product((1, 2), images.ids):
                say(f"image {images.ids.index(image_id) + 1} goes to host {number + 1}")
                cloud.agents[number].ctl("pre-seed", image_id)
            for host in cloud.network.hosts:
                cloud.network.shape(host, LINK_MBIT)
            cloud.mark()
            lacked_bytes, took_s = wait_fully_cached(cloud.agents[TAKER], images.ids[0], say)
            latencies = read_beside(cloud, say)
            source_bytes = cloud.source_bytes()
    limit_s = lacked_bytes / (LINK_MBIT * 1e6 / 8 * PAYLOAD)
    p99_s = {name: statistics.quantiles(found, n=100)[98] for name, found in latencies.items()}
    details = {
        "lacked_bytes": lacked_bytes,
        "limit_s": limit_s,
        "took_s": took_s,
        "source_bytes": source_bytes,
        "p99_s": p99_s,
        "median_s": {name: statistics.median(found) for name, found in latencies.items()},
        "reads": {name: len(found) for name, found in latencies.items()},
    }
    values: dict[str, harness.Value] = {
        "W1": took_s / limit_s,
        "W1a": p99_s["filled"] / p99_s["paused"],
    }
    return harness.Result(values, details, lambda picture: draw(picture, latencies, TITLE))


def wait_fully_cached(agent: agents.Agent, image_id: str, say: harness.Say) -> tuple[int, float]:
    """Open an image; return the bytes missing after its boot, and fill time."""
    fd = os.open(agent.image_path(image_id), os.O_RDONLY)
    try:
        wait_filling(agent, image_id)
        lacked_bytes: int = fill_status(agent, image_id)["remaining_bytes"]
        say(f"missing: {lacked_bytes / 1e6:.0f} MB")
        began_s = time.monotonic()
        *_, (ended_s, _) = follow_fill(agent, image_id, say)
        return lacked_bytes, ended_s - began_s
    finally:
        os.close(fd)


def follow_fill(
    agent: agents.Agent, image_id: str, say: harness.Say
) -> Iterator[tuple[float, float]]:
    """Yield the time and the cached share of an image every 0.1 s, until it is fully cached."""
    began_s = told_s = time.monotonic()
    while True:
        shown, now_s = fill_status(agent, image_id), time.monotonic()
        if shown.get("state") == "fully_cached":
            yield now_s, 1.0
            return
        share = shown.get("cached_share") or 0.0
        yield now_s, share
        if now_s - told_s >= 15:
            say(f"{shown.get('state')}: {share:.0%}")
            told_s = now_s
        if now_s - began_s > DEADLINE_S:
            raise harness.CannotRun(
                f"the image is not fully cached after {DEADLINE_S:g} s: {shown}"
            )
        time.sleep(0.1)


def wait_filling(agent: agents.Agent, image_id: str) -> None:
    """Wait until the boot of an image's guest is over, and the fill starts."""

    def is_filling() -> bool:
        return fill_status(agent, image_id).get("state") not in (None, "booting", "queued")

    runs.wait_for(is_filling, FILLING_DEADLINE_S, "the fill of an image", agent.log)


def fill_status(agent: agents.Agent, image_id: str) -> dict[str, Any]:
    """Return an image's fill status."""
    found: dict[str, Any] = agent.status()["images"].get(image_id, {}).get("fill") or {}
    return found


def read_beside(cloud: collective.Cloud, say: harness.Say) -> dict[str, list[float]]:
    """Read uncached chunks while another image is filled and while it is paused."""
    agent, data = cloud.agents[TAKER], cloud.images.data(2)
    _, filled, read = (agent.image_path(image_id) for image_id in cloud.images.ids)
    filled_id = cloud.images.ids[1]
    offsets = list(range(0, GUEST_BYTES, READ_BYTES))
    random.Random(1).shuffle(offsets)
    latencies: dict[str, list[float]] = {"filled": [], "paused": []}
    fds = [os.open(filled, os.O_RDONLY), os.open(read, os.O_RDONLY | os.O_DIRECT)]
    try:
        agent.ctl("pause", cloud.images.ids[2])  # only the guest fetches it
        time.sleep(2 * BOOT_S + 1)
        for turn, name in zip(range(2 * TURNS), itertools.cycle(latencies), strict=False):
            agent.ctl("resume" if name == "filled" else "pause", filled_id)
            time.sleep(1.5)
            before = fill_status(agent, filled_id)["remaining_bytes"]
            latencies[name] += read_for(fds[1], data, offsets)
            shown = fill_status(agent, filled_id)
            came = (before or 0) - (shown["remaining_bytes"] or 0)
            say(f"turn {turn + 1}, {name}: {came / TURN_S / 1e6:.1f} MB/s of the other image")
            if name == "filled" and (shown["state"] == "fully_cached" or not came):
                raise harness.CannotRun(f"no data was filled beside the reads: {shown}")
    finally:
        for fd in fds:
            os.close(fd)
    return latencies


def read_for(fd: int, data: mmap.mmap, offsets: list[int]) -> list[float]:
    """Read unread chunks at an even rate for a turn; return the latencies."""
    buffer, found = mmap.mmap(-1, READ_BYTES), []
    end_s = time.monotonic() + TURN_S
    due_s = time.monotonic()
    while (began_s := time.monotonic()) < end_s and offsets:
        offset = offsets.pop()
        count = os.preadv(fd, [buffer], offset)
        found.append(time.monotonic() - began_s)
        if buffer[:count] != data[offset : offset + READ_BYTES]:
            raise harness.CannotRun(f"wrong bytes at {offset}")
        due_s += BETWEEN_READS_S
        time.sleep(max(0.0, due_s - time.monotonic()))
    return found


def draw(picture: figure.Figure, latencies: dict[str, list[float]], title: str) -> None:
    """Draw the distribution of the latencies."""
    axes = picture.subplots()
    for name, found in latencies.items():
        axes.ecdf([1e3 * one for one in found], label=name)
    axes.axhline(0.99, color="tab:red", linestyle="--", label="99 %")
    axes.set(title=title, xlabel="latency in ms", ylabel="share of reads", xscale="log")
    axes.legend()
