# SPDX-License-Identifier: Apache-2.0
"""W1b: the cost of another image's background fill for a guest's boot.

A cold host with a link of 100 Mbit/s to the image server.  Another image of 2 GiB is open there, as
by an instance: it is filled, or its fill is paused.  Then the lab's guest boots from the mirror of
its own image, uncached and without a boot image.  In turns, each with a new agent and an empty
cache; W1b is the median of the ratios of neighbouring turns.
"""

import contextlib
import os
import statistics
import time

from matplotlib import figure

from evaluation.bench import boots
from evaluation.bench import collective
from evaluation.bench import harness
from evaluation.bench import w1_hydration
from tests.lab import guest_image
from tests.lab import local
from tests.lab import tuned

PAIRS = 5
WARM_S = 2.0
"""By then, the fill rate has adapted to the link."""
BOOT_IDLE_S = 20.0
"""The end of a boot after the last read, instead of a minute.

It holds for the other image and for the guest's.
"""
OPTIONS = w1_hydration.OPTIONS | {"constants": {tuned.BOOT_IDLE_S: BOOT_IDLE_S}}
WAYS = ("paused", "filled")


@harness.measures("W1b")
def run(say: harness.Say) -> harness.Result:
    """Boot a guest on a cold host, with another image's fill running and paused."""
    guest = guest_image.ensure(say)
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    with collective.images(local.random_bytes(w1_hydration.W1_BYTES, 1)) as images:
        guest_id = images.files.adopt(guest.raw)
        for pair in range(PAIRS):
            for way in WAYS if pair % 2 else reversed(WAYS):
                found[way].append(boot(images, guest_id, way, say))
    ratios = [
        whole_s / paused_s
        for whole_s, paused_s in zip(found["filled"], found["paused"], strict=True)
    ]
    details = {"login_s": found, "ratios": ratios}
    values: dict[str, harness.Value] = {"W1b": statistics.median(ratios)}
    return harness.Result(values, details, lambda picture: draw(picture, found))


def boot(images: collective.Images, guest_id: str, way: str, say: harness.Say) -> float:
    """Return a guest's time to its login prompt, in seconds."""
    cloud = collective.Cloud(1, w1_hydration.LINK_MBIT, images)
    with cloud.running(**OPTIONS), contextlib.ExitStack() as stack:
        agent, other_id = cloud.agents[0], images.ids[0]
        fd = os.open(agent.image_path(other_id), os.O_RDONLY)
        stack.callback(os.close, fd)
        w1_hydration.wait_filling(agent, other_id)
        if way == "paused":
            agent.ctl("pause", other_id)
        time.sleep(WARM_S)
        before_bytes = w1_hydration.fill_status(agent, other_id)["remaining_bytes"]
        login_s = boots.login_s(cloud.network.hosts[0], agent.image_path(guest_id))
        shown = w1_hydration.fill_status(agent, other_id)
    came_bytes = before_bytes - shown["remaining_bytes"]
    say(f"{way}: login after {login_s:.1f} s, {came_bytes / 1e6:.0f} MB of the other image filled")
    if (way == "paused") != (came_bytes == 0) or shown["state"] == "fully_cached":
        raise harness.CannotRun(f"the fill of the other image was not as expected: {shown}")
    return login_s


def draw(picture: figure.Figure, found: dict[str, list[float]]) -> None:
    """Draw each boot."""
    axes = picture.subplots()
    for number, (way, seconds) in enumerate(found.items()):
        axes.plot([number] * len(seconds), seconds, "o", label=way)
    axes.set(
        title="Boot of a guest on a cold host while another image is filled, or the fill paused",
        ylabel="seconds to the login prompt",
        xticks=range(len(found)),
        xticklabels=list(found),
        ylim=(0, None),
    )
