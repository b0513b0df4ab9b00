# SPDX-License-Identifier: Apache-2.0
"""P14: the time of a running server's snapshot through Nova's API.

The time ends when the image is active.  One cloud, two compute hosts; the lab's Debian guest runs
on each, on the second one with stock Nova, which has downloaded the image.  The first one makes its
snapshots when the image is fully cached, as after a pre-seed; before, it makes one cold snapshot,
for which the agent must fetch the chunks that no boot reads.  The two hosts take turns, under the
same machine load.
"""

import contextlib
import statistics
import time

from matplotlib import figure

from acstor_nova import agent_client
from evaluation.bench import harness
from evaluation.bench import nova_pair
from tests.fakes import nova_hosts
from tests.lab import guest_image
from tests.lab import runs

ROUNDS = 7
DISK_GIB = 2


@harness.measures("P14")
def run(say: harness.Say) -> harness.Result:
    """Make snapshots of a server on each host, in turns."""
    nova_pair.check()
    guest = guest_image.ensure(say)
    with runs.Run() as folders, contextlib.ExitStack() as stack:
        lab = stack.enter_context(nova_pair.started(folders.folder / "openstack"))
        both = stack.enter_context(nova_pair.running(lab, DISK_GIB))
        servers = stack.enter_context(nova_pair.servers(both, guest.raw, guest.qcow2))
        say("both guests are at their login prompts")
        cold_s = time_of(servers["acstor"])
        control = str(both.hosts[0].agent.control_socket)
        agent_client.AgentClient(control, nova_pair.DEADLINE_S).pre_seed(
            servers["acstor"].image_id, nova_pair.DEADLINE_S
        )
        took_s: dict[str, list[float]] = {way: [] for way in servers}
        for number in range(ROUNDS):
            for way, server in servers.items():
                took_s[way].append(time_of(server))
            say(f"{number + 1} of {ROUNDS}: " + shown(took_s))
    middle = {way: statistics.median(times) for way, times in took_s.items()}
    details = {"took_s": took_s, "median_s": middle, "cold_s": cold_s}
    return harness.Result(
        {"P14": middle["acstor"] / middle["stock"]},
        details,
        lambda picture: draw(picture, took_s),
    )


def time_of(server: nova_hosts.Server) -> float:
    """Return the duration of a snapshot in seconds."""
    began_s = time.monotonic()
    server.snapshot()
    return time.monotonic() - began_s


def shown(took_s: dict[str, list[float]]) -> str:
    """Return the last time of each way."""
    return ", ".join(f"{way} {times[-1]:.2f} s" for way, times in took_s.items())


def draw(picture: figure.Figure, took_s: dict[str, list[float]]) -> None:
    """Draw the times of both ways."""
    axes = picture.subplots()
    axes.boxplot(list(took_s.values()), tick_labels=list(took_s))
    axes.set(ylabel="seconds until the snapshot is active", ylim=(0, None))
