# SPDX-License-Identifier: Apache-2.0
"""W2: the time until the cloud has two copies of a used image.

Hosts on one ring with ``keep_images = cloud``, links of one rate, and an image server with the sum
of their rates. One host pins an image that no host has. W2 is the time until that host reports two
copies of each chunk, over the transfer time of the image's bytes at the sum of all links' rates.
Each byte goes to two hosts, so 2 is the minimum if links are the limit.
"""

import time

from matplotlib import figure

from acstor_common.model import geometry
from evaluation.bench import collective
from evaluation.bench import harness
from evaluation.bench import w1_hydration
from tests.lab import local

HOSTS = 4
LINK_MBIT = 100
IMAGE_BYTES = 1024 * geometry.MIB
OPTIONS = w1_hydration.OPTIONS | {"keep_images": "cloud", "link_mbit": LINK_MBIT}


@harness.measures("W2")
def run(say: harness.Say) -> harness.Result:
    """Let a cloud of four cold hosts cache an image."""
    with collective.images(local.random_bytes(IMAGE_BYTES, 2)) as images:
        cloud = collective.Cloud(HOSTS, LINK_MBIT, images, [range(HOSTS)])
        with cloud.running(**OPTIONS):
            cloud.network.shape(cloud.network.source, HOSTS * LINK_MBIT)
            before = cloud.network.link_bytes()
            seen = wait_fully_cached(cloud, say)
            after = cloud.network.link_bytes()
            source_bytes = cloud.source_bytes()
            pinned = [one["cache"]["pinned_missing_chunks"] for one in cloud.status()]
    if any(pinned):
        raise harness.CannotRun(f"pinned chunks are missing: {pinned}")
    limit_s = IMAGE_BYTES / (HOSTS * LINK_MBIT * 1e6 / 8 * w1_hydration.PAYLOAD)
    details = {
        "limit_s": limit_s,
        "took_s": seen[-1][0],
        "source_bytes": source_bytes,
        "received_bytes": {
            name: after[name].received - before[name].received for name in sorted(after)
        },
        "shares": seen,
    }
    values: dict[str, harness.Value] = {"W2": seen[-1][0] / limit_s}
    return harness.Result(values, details, lambda picture: draw(picture, seen, limit_s))


def wait_fully_cached(cloud: collective.Cloud, say: harness.Say) -> list[tuple[float, float]]:
    """Pin the image at the first host; return its share in the cloud over time."""
    agent, image_id = cloud.agents[0], cloud.images.ids[0]
    began_s = time.monotonic()
    agent.ctl("attach", image_id)
    seen = [(0.0, 0.0)]
    for now_s, share in w1_hydration.follow_fill(agent, image_id, say):
        if now_s - began_s - seen[-1][0] >= 1 or share == 1:
            seen.append((now_s - began_s, share))
    return seen


def draw(picture: figure.Figure, seen: list[tuple[float, float]], limit_s: float) -> None:
    """Draw the image's share over time, with the links' limit."""
    axes = picture.subplots()
    axes.plot([at_s for at_s, _ in seen], [100 * share for _, share in seen], label="two copies")
    axes.plot([0, 2 * limit_s], [0, 100], linestyle="--", label="each byte on two links")
    axes.set(
        title="An image that one host uses is replicated in the cloud",
        xlabel="seconds",
        ylabel="% of the image",
    )
    axes.legend()
