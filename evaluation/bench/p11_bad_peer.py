# SPDX-License-Identifier: Apache-2.0
"""P11: the cost of one bad peer of three for the other two.

Two hosts read one region through a ring of three.  The third reads nothing and starts with an empty
cache, but is the home of a third of the segments.  Runs differ only in its health.  It is

- dead: both processes of its agent killed before the others start;
- frozen: both stopped (SIGSTOP), while its kernel still accepts connections;
- slow: its link has a twentieth of the rate;
- lying: :mod:`evaluation.bench.liar` runs in its place, advertises every chunk and sends
  wrong bytes.

The figure is the worst completion of the two over the mean of two runs with three healthy hosts.
Shown besides, not in the figure: the host vanishes (its link goes down, without a reset), and it
dies, freezes or vanishes after a third of the time.
"""

import contextlib
import math
import os
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

from matplotlib import figure

from acstor_common import errors
from acstor_common.model import geometry
from evaluation.bench import collective
from evaluation.bench import harness
from evaluation.bench import liar
from tests.lab import agents
from tests.lab import local

HOSTS = 3
BAD = 2
LINK_MBIT = 25
REGION_BYTES = 32 * geometry.MIB
SLOW_DIVISOR = 20
LIMIT_S = REGION_BYTES / (LINK_MBIT * 1e6 / 8)

Deed = Callable[[collective.Cloud], None]


@harness.measures("P11")
def run(say: harness.Say) -> harness.Result:
    """Let two hosts read beside a third one in each state of health."""
    data = local.random_bytes(REGION_BYTES, seed=1)
    found: dict[str, dict[str, Any]] = {}
    with collective.images(data) as images:

        def play(name: str, deed: Deed | None = None, midway: bool = False) -> None:
            found[name] = watch(images, deed, midway, is_lying=name == "lying")
            took_s = found[name]["took_s"]
            say(f"{name}: {found[name]['fault'] or f'{max(took_s) / LIMIT_S:.2f} times the limit'}")

        play("healthy")
        for name, deed in STATES.items():
            play(name, deed)
        play("vanished", vanish)
        for name, deed in {"dies": die, "freezes": freeze, "vanishes": vanish}.items():
            play(f"{name} midway", deed, midway=True)
        play("healthy again")
    healthy_s = statistics.mean(max(found[n]["took_s"]) for n in ("healthy", "healthy again"))
    ratios = {
        name: math.inf if way["fault"] else max(way["took_s"]) / healthy_s
        for name, way in found.items()
    }
    worst = max(ratios[name] for name in STATES)
    details = {"ratios": ratios, "runs": found, "healthy_over_limit": healthy_s / LIMIT_S}
    return harness.Result({"P11": worst}, details, lambda picture: draw(picture, ratios))


def watch(
    images: collective.Images,
    deed: Deed | None,
    midway: bool,
    is_lying: bool,
    region_bytes: int = REGION_BYTES,
    link_mbit: float = LINK_MBIT,
) -> dict[str, Any]:
    """Let the others read while the bad host is in a state; return their measurements."""
    cloud = collective.Cloud(HOSTS, link_mbit, images, [range(HOSTS)], [BAD] if is_lying else [])
    readings = {
        number: collective.Reading(((0, region_bytes),)) for number in range(HOSTS) if number != BAD
    }
    # Without encryption, which the liar lacks; it does not change the cost of a bad peer.
    with cloud.running(security="insecure"), contextlib.ExitStack() as stack:
        if is_lying:
            stack.enter_context(hostile_host(cloud))
        else:
            cloud.attach({BAD: readings[0]})
            stack.callback(revive, cloud)
        cloud.attach(readings)
        cloud.mark()
        timer = threading.Timer(LIMIT_S / 3 if midway else 0, deed or nothing, [cloud])
        timer.start()
        if not midway:
            timer.join()
        took_s, fault = [], ""
        try:
            took_s = [seen.took_s for seen in cloud.read(readings).values()]
        except harness.CannotRun as e:  # a guest's error is a result, the worst one
            fault = str(e)
        timer.join()
        statuses = [cloud.agents[number].status() for number in readings]
        return {
            "took_s": took_s,
            "fault": fault,
            "source_ratio": cloud.source_bytes() / region_bytes,
            "exchange": [status["exchange"] for status in statuses],
        }


def nothing(cloud: collective.Cloud) -> None:
    """Do nothing."""


def _signal(cloud: collective.Cloud, number: int) -> None:
    """Send a signal to both processes of the bad host's agent."""
    agent = cloud.agents[BAD]
    for pid in (agent.pid, agent.worker_pid()):  # the supervisor first: it would start another
        if pid is not None:
            os.kill(pid, number)


def die(cloud: collective.Cloud) -> None:
    """Kill the agent."""
    worker = cloud.agents[BAD].worker_pid()
    os.kill(cloud.agents[BAD].pid, signal.SIGKILL)
    if worker is not None:
        os.kill(worker, signal.SIGKILL)


def freeze(cloud: collective.Cloud) -> None:
    """Stop the agent, like a debugger or a hanging kernel."""
    _signal(cloud, signal.SIGSTOP)


def revive(cloud: collective.Cloud) -> None:
    """Resume a frozen agent, so that it can be stopped gracefully."""
    with contextlib.suppress(errors.Unusable):  # it is dead
        _signal(cloud, signal.SIGCONT)


def slow(cloud: collective.Cloud) -> None:
    """Reduce the rate of the host's link."""
    link_mbit = cloud.network.link_mbit
    assert link_mbit is not None
    cloud.network.shape(cloud.network.hosts[BAD], link_mbit / SLOW_DIVISOR)


def vanish(cloud: collective.Cloud) -> None:
    """Take the host's link down: packets to it are lost without an error."""
    cloud.network.hosts[BAD].run(["ip", "link", "set", "eth0", "down"])


STATES: dict[str, Deed] = {"dead": die, "frozen": freeze, "slow": slow, "lying": nothing}


@contextlib.contextmanager
def hostile_host(cloud: collective.Cloud) -> Iterator[None]:
    """Run the liar in the bad host's place for the block."""
    here, *others = (f"{cloud.network.hosts[n].address}:{agents.PEER_PORT}" for n in (BAD, 0, 1))
    host = cloud.network.hosts[BAD]
    image_map = cloud.images.files.map_path(cloud.images.ids[0])
    process = host.popen(
        [sys.executable, "-m", liar.__name__, host.name, here, image_map, *others],
        cwd=harness.ROOT,
        stdin=subprocess.DEVNULL,
    )
    try:
        collective.wait_listening(host, agents.PEER_PORT)
        yield
    finally:
        process.kill()
        process.wait()


def draw(picture: figure.Figure, ratios: dict[str, float]) -> None:
    """Draw each case; those outside the figure are pale."""
    picture.set_size_inches(10, 4.8)
    axes = picture.subplots()
    shown = {name: ratio for name, ratio in ratios.items() if math.isfinite(ratio)}
    colours = ["tab:blue" if name in STATES else "tab:gray" for name in shown]
    axes.bar_label(axes.bar(list(shown), list(shown.values()), color=colours), fmt="%.2f")
    (target,) = harness.bounds("P11")
    axes.axhline(target, color="tab:red", linestyle="--", label=f"target {target:g}")
    axes.set(
        title=f"One bad peer of three: {REGION_BYTES >> 20} MiB, links {LINK_MBIT} Mbit/s",
        ylabel="completion of the others / all healthy",
    )
    axes.tick_params(axis="x", labelrotation=20)
    axes.legend()
