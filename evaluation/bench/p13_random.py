# SPDX-License-Identifier: Apache-2.0
"""P13: random reads on a cold host, while another host has every byte.

Host 1 reads the whole image while it is alone on the ring.  Then host 2 joins the ring, and reads
64 KiB at random places, each range once, with O_DIRECT, as QEMU with cache=none does.  Half of the
segments have host 2 itself as home, which has nothing: it must learn that host 1 has them.

The first figure is the share of its bytes from peers.  The second is the bytes received on host 2's
link, from before its agent's start until no transfer was in flight, over the requested ones: with
chunk map, advertisements, headers and unused prefetches.  The comparison is the same reads by a
host without peers.
"""

import random
import time
from typing import Any

from matplotlib import figure

from acstor_common.model import geometry
from evaluation.bench import collective
from evaluation.bench import harness
from tests.lab import agents
from tests.lab import local

LINK_MBIT = 100
IMAGE_BYTES = 64 * geometry.MIB
ASKED_BYTES = 16 * geometry.MIB
READ_BYTES = 64 * geometry.KIB
QUIET_S = 2.0


@harness.measures("P13")
def run(say: harness.Say) -> harness.Result:
    """Read at random beside a warm host, and without peers."""
    numbers = random.Random(13).sample(range(IMAGE_BYTES // READ_BYTES), ASKED_BYTES // READ_BYTES)
    reading = collective.Reading(tuple((number * READ_BYTES, READ_BYTES) for number in numbers))
    found = {}
    with collective.images(local.random_bytes(IMAGE_BYTES, seed=1)) as images:
        for name, is_shared in (("beside a warm host", True), ("alone", False)):
            found[name] = cold_reads(images, reading, is_shared)
            say(
                f"{name}: {found[name]['peer_share']:.4f} of the bytes from peers, "
                f"{found[name]['moved_over_asked']:.3f} bytes moved for each one requested"
            )
    warm = found["beside a warm host"]
    return harness.Result(
        {"P13": (warm["peer_share"], warm["moved_over_asked"])},
        {"runs": found, "asked_bytes": reading.length, "image_bytes": IMAGE_BYTES},
        lambda picture: draw(picture, found),
    )


def cold_reads(
    images: collective.Images, reading: collective.Reading, is_shared: bool
) -> dict[str, Any]:
    """Warm host 1, start host 2, let it read; return the origins of its bytes."""
    cloud = collective.Cloud(2, LINK_MBIT, images, [[0]], without_agent=[1])
    with cloud.running():
        whole = {0: collective.Reading(((0, IMAGE_BYTES),))}
        cloud.attach(whole)
        cloud.read(whole)
        cloud.settle()
        ring = cloud.network.run.folder / "ring-0.json"
        before = cloud.network.link_bytes()["h2"]
        cold = agents.Agent(cloud.network.hosts[1], cloud.server.url, ring if is_shared else None)
        if is_shared:
            agents.write_ring(cloud.network.hosts, ring, epoch=2)
        with cold:
            cold.wait_ready()
            cloud.agents[1] = cold
            cloud.attach({1: reading})
            time.sleep(QUIET_S)  # time for announcements between neighbours
            seen = cloud.read({1: reading}, is_direct=True)[1]
            cloud.settle()
            time.sleep(QUIET_S)
            received_bytes = (cloud.network.link_bytes()["h2"] - before).received
            status = cold.status()
    moved = collective.moved_bytes(status)
    from_peers = moved["home"] + moved["peer"]
    return {
        "peer_share": from_peers / sum(moved.values()),
        "moved_over_asked": received_bytes / reading.length,
        "chunks_moved_over_asked": sum(moved.values()) / reading.length,
        "moved_bytes": moved,
        "read": status["read"],
        "reads_per_s": len(reading.spans) / seen.took_s,
    }


def draw(picture: figure.Figure, found: dict[str, dict[str, Any]]) -> None:
    """Draw both figures, with their targets."""
    left, right = picture.subplots(1, 2)
    least, most = harness.bounds("P13")
    for axes, key, target, title in (
        (left, "peer_share", least, "share of the bytes from peers"),
        (right, "moved_over_asked", most, "bytes received / bytes requested"),
    ):
        bars = axes.bar(list(found), [way[key] for way in found.values()])
        axes.bar_label(bars, fmt="%.3f")
        axes.axhline(target, color="tab:red", linestyle="--", label=f"target {target:g}")
        axes.set(title=title, ylim=(0, 1.2 * max(target, *(way[key] for way in found.values()))))
        axes.legend(loc="upper right")
