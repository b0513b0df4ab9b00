# SPDX-License-Identifier: Apache-2.0
"""N2: one reader reads a new image in order, from an image server that is far away.

The server's link has 100 Mbit/s and the delay of each round trip. A guest's reads are 128 KiB long.
The comparison is curl, which downloads the same file over the same link before the agent starts.

N2 is the least rate, over the round trips, of the second half of the image, over the payload that
the link carries; then the longest time for the whole image over that of curl. The first half has
the slow starts: of the readahead, and of TCP in each new connection.
"""

import time
from typing import Any

from matplotlib import figure

from acstor_common.model import geometry
from evaluation.bench import collective
from evaluation.bench import harness
from tests.lab import agents
from tests.lab import delay_link
from tests.lab import image_server
from tests.lab import local
from tests.lab import network

LINK_MBIT = 100.0
PAYLOAD_BYTES_S = LINK_MBIT * 1e6 / 8 * 1448 / 1514  # without the headers of Ethernet, IP and TCP
ROUND_TRIPS_MS = (20.0, 100.0, 200.0)
IMAGE_BYTES = 256 * geometry.MIB
READ_BYTES = 128 * geometry.KIB


@harness.measures("N2")
def run(say: harness.Say) -> harness.Result:
    """Read the image at each round trip, by curl and through an agent."""
    found = {}
    with collective.images(local.random_bytes(IMAGE_BYTES, seed=1)) as images:
        for rtt_ms in ROUND_TRIPS_MS:
            found[rtt_ms] = read_both_ways(images, rtt_ms)
            say(f"{rtt_ms:g} ms: {found[rtt_ms]}")
    slowest = min(one["second_half_bytes_s"] for one in found.values()) / PAYLOAD_BYTES_S
    longest = max(one["agent_s"] / one["curl_s"] for one in found.values())
    return harness.Result(
        {"N2": (slowest, longest)},
        {"round_trips_ms": found, "image_bytes": IMAGE_BYTES},
        lambda picture: draw(picture, found),
    )


def read_both_ways(images: collective.Images, rtt_ms: float) -> dict[str, float]:
    """Return the seconds of curl and of a guest's reads, and the rate of their second half."""
    delay, image_id = delay_link.LinkDelay(rtt_ms / 2), images.ids[0]
    with (
        network.Network(1, LINK_MBIT, LINK_MBIT, source_delay=delay) as net,
        image_server.ImageServer(net.source, images.files.folder) as server,
    ):
        url = f"{server.url}/{images.files.path(image_id).name}"
        began_s = time.monotonic()
        net.hosts[0].run(["curl", "-sSf", "-o", "/dev/null", url])
        curl_s = time.monotonic() - began_s
        with agents.Agent(net.hosts[0], server.url) as agent:
            agent.wait_ready()
            began_s = time.monotonic()
            half_s, end_s = read_in_order(agent, image_id)
    return {
        "curl_s": curl_s,
        "agent_s": end_s - began_s,
        "second_half_bytes_s": IMAGE_BYTES / 2 / (end_s - half_s),
    }


def read_in_order(agent: agents.Agent, image_id: Any) -> tuple[float, float]:
    """Read an image; return when half of it, and when all of it was read."""
    half_s = 0.0
    with agent.image_path(image_id).open("rb", buffering=0) as file:
        for offset in range(0, IMAGE_BYTES, READ_BYTES):
            if offset == IMAGE_BYTES // 2:
                half_s = time.monotonic()
            if len(file.read(READ_BYTES)) != READ_BYTES:
                raise harness.CannotRun(f"a short read at {offset}")
    return half_s, time.monotonic()


def draw(picture: figure.Figure, found: dict[float, dict[str, float]]) -> None:
    """Draw the seconds of both ways over the round trip, and those of the link."""
    axes = picture.subplots()
    for name, label in (("curl_s", "curl"), ("agent_s", "through an agent")):
        axes.plot(list(found), [one[name] for one in found.values()], "o-", label=label)
    axes.axhline(IMAGE_BYTES / PAYLOAD_BYTES_S, color="0.5", linestyle=":", label="link")
    axes.set(xlabel="round trip, ms", ylabel="seconds for 256 MiB", ylim=(0, None))
    axes.legend()
