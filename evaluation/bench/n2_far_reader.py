# SPDX-License-Identifier: Apache-2.0
"""N2, N2b, W1d: a new image comes from an image server that is far away.

The server's link has 100 Mbit/s and the delay of each round trip. curl downloads the image over it
before an agent starts, for comparison. Then a guest reads the whole image in order, 128 KiB at a
time, through an agent that fetches only what guests read, and through one that also fills the image
in the background, as agents do by default. At last an agent fills an image that nobody reads.

N2 is the least rate, over the round trips, of the second half of the image, over the payload that
the link carries; then the longest time for the whole image over that of curl. The first half has
the slow starts: of the readahead, and of TCP in each new connection. N2b is the same with the fill.
W1d is the longest time, from the start of the fill until the image is fully cached, over that of
curl for the bytes that are missing.
"""

import contextlib
import time
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from matplotlib import figure

from acstor_common.model import geometry
from evaluation.bench import collective
from evaluation.bench import harness
from evaluation.bench import w1_hydration
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
FILL = {
    name: w1_hydration.OPTIONS[name] for name in ("keep_images", "traffic_interfaces", "link_mbit")
}
WAYS: Mapping[str, Mapping[str, Any]] = {"N2": {}, "N2b": FILL}
"""The agent's options, by benchmark."""

Found = dict[str, dict[str, float]]


@harness.measures("N2", "N2b", "W1d")
def run(say: harness.Say) -> harness.Result:
    """Fetch the image at each round trip, in each way."""
    found = {}
    with collective.images(local.random_bytes(IMAGE_BYTES, seed=1)) as images:
        for rtt_ms in ROUND_TRIPS_MS:
            found[rtt_ms] = measure(images, rtt_ms, say)
            say(f"{rtt_ms:g} ms: {found[rtt_ms]}")
    values: dict[str, harness.Value] = {}
    for way in WAYS:
        slowest = min(one[way]["second_half_bytes_s"] for one in found.values()) / PAYLOAD_BYTES_S
        values[way] = slowest, max(one[way]["over_curl"] for one in found.values())
    values["W1d"] = max(one["W1d"]["over_curl"] for one in found.values())
    return harness.Result(
        values,
        {"round_trips_ms": found, "image_bytes": IMAGE_BYTES},
        lambda picture: draw(picture, found),
    )


def measure(images: collective.Images, rtt_ms: float, say: harness.Say) -> Found:
    """Return the seconds of each way, and over those of curl; also a guest's later rate."""
    found, image_id = {}, images.ids[0]
    for way, options in WAYS.items():
        with far_agent(images, rtt_ms, options) as (agent, curl_s):
            began_s = time.monotonic()
            half_s, end_s = read_in_order(agent, image_id)
        found[way] = {
            "curl_s": curl_s,
            "seconds": end_s - began_s,
            "over_curl": (end_s - began_s) / curl_s,
            "second_half_bytes_s": IMAGE_BYTES / 2 / (end_s - half_s),
        }
    with far_agent(images, rtt_ms, w1_hydration.OPTIONS) as (agent, curl_s):
        missing_bytes, seconds = w1_hydration.wait_fully_cached(agent, image_id, say)
    over_curl = seconds / (curl_s * missing_bytes / IMAGE_BYTES)
    found["W1d"] = {"curl_s": curl_s, "seconds": seconds, "over_curl": over_curl}
    return found


@contextlib.contextmanager
def far_agent(
    images: collective.Images, rtt_ms: float, options: Mapping[str, Any]
) -> Iterator[tuple[agents.Agent, float]]:
    """Yield an agent with an empty cache, and the seconds in which curl downloaded the image."""
    delay = delay_link.LinkDelay(rtt_ms / 2)
    with (
        network.Network(1, LINK_MBIT, LINK_MBIT, source_delay=delay) as net,
        image_server.ImageServer(net.source, images.files.folder) as server,
    ):
        url = f"{server.url}/{images.files.path(images.ids[0]).name}"
        began_s = time.monotonic()
        net.hosts[0].run(["curl", "-sSf", "-o", "/dev/null", url])
        curl_s = time.monotonic() - began_s
        with agents.Agent(net.hosts[0], server.url, **options) as agent:
            agent.wait_ready()
            yield agent, curl_s


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


def draw(picture: figure.Figure, found: dict[float, Found]) -> None:
    """Draw the seconds of each way over the round trip, and those of the link."""
    axes = picture.subplots()
    curl_s = [one["N2"]["curl_s"] for one in found.values()]
    axes.plot(list(found), curl_s, "o-", label="curl")
    labels = {"N2": "a guest", "N2b": "a guest, with the fill", "W1d": "the fill alone"}
    for way, label in labels.items():
        axes.plot(list(found), [one[way]["seconds"] for one in found.values()], "o-", label=label)
    axes.axhline(IMAGE_BYTES / PAYLOAD_BYTES_S, color="0.5", linestyle=":", label="link")
    axes.set(xlabel="round trip, ms", ylabel="seconds for 256 MiB", ylim=(0, None))
    axes.legend()
