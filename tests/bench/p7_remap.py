# SPDX-License-Identifier: Apache-2.0
"""P7: all hosts read one region beside uneven background traffic, with remap and without.

This is the pattern of Wu et al. 2017 (ACStor), 5.4: the traffic of hosts, in plus
out, has a mean of 56 % of the link's rate and a coefficient of variation of 1.2.
Some hosts are as busy as they can be; pairs of them send to each other at the same
rate both ways.  The paper compares mean boot times, so here it is the mean time of
the hosts' readings.  The matrix, the image and the order of reads are the same in
both runs; the only difference is the service's option ``remap``.

A real acstor-decision with a real broker decides.  Reading begins when the
traffic has been there for some collections, and with remap when all agents have
the new table.
"""

import contextlib
import json
import os
import pathlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

from acstor_common import geometry
from acstor_common import ring
from tests.bench import collective
from tests.bench import harness
from tests.lab import agents
from tests.lab import decision
from tests.lab import image_server
from tests.lab import local
from tests.lab import network
from tests.lab import relay
from tests.lab import runs
from tests.lab import traffic
from tests.lab.openstack import rabbitmq

HOSTS = int(os.environ.get("ACSTOR_BENCH_P7_HOSTS", "16"))
LINK_MBIT = 12
SOURCE_MBIT = 100
REGION_BYTES = 4 * geometry.MIB
MEAN, CV = 0.56, 1.2
OVERLOAD_SHARE = 0.7
COLLECTION_S = 2.0
COLLECTIONS_BEFORE = 6
DEADLINE_S = 120.0
TARGET = 2.6


@harness.benchmark(
    "P7",
    title="A region read by all beside traffic of mean 56 %, CV 1.2: mean time, no remap / remap",
    target=f">= {TARGET}",
    unit="times",
)
def run(say: harness.Say) -> harness.Result:
    """Let all hosts read, first without remap, then with."""
    if shutil.which("/usr/sbin/rabbitmq-server") is None:
        raise harness.CannotRun("rabbitmq-server is not installed")
    shares = traffic.loads(HOSTS, MEAN, CV)
    found = {}
    with collective.images(local.random_bytes(REGION_BYTES, seed=7)) as images:
        for name, remap in (("without remap", False), ("with remap", True)):
            one = found[name] = outcome(images, shares, remap)
            say(
                f"{name}: mean {one['mean_s']:.1f} s, idle hosts {one['idle_mean_s']:.1f} s, busy "
                f"hosts {one['busy_mean_s']:.1f} s, v-nodes of busy hosts {one['busy_vnodes']}"
            )
    without, with_remap = found["without remap"], found["with remap"]
    return harness.Result(
        {"P7": without["mean_s"] / with_remap["mean_s"]},
        {
            "runs": found,
            "shares": shares,
            "link_mbit": LINK_MBIT,
            "region_bytes": REGION_BYTES,
            "idle_hosts_ratio": without["idle_mean_s"] / with_remap["idle_mean_s"],
        },
    )


def outcome(images: collective.Images, shares: list[float], remap: bool) -> dict[str, Any]:
    """Return how long each host read."""
    busy = [number for number, share in enumerate(shares) if share > MEAN]
    with running(images, remap) as cloud, beside(cloud.network, shares):
        settle(cloud, remap)
        readings = {n: collective.Reading(((0, REGION_BYTES),)) for n in range(HOSTS)}
        cloud.attach(readings)
        seen = cloud.read(readings)
        table = agents.request(cloud.agents[0].control_socket, "ring")
    hosts = ring.decode(json.dumps(table).encode(), "table").hosts
    took = [seen[number].took_s for number in range(HOSTS)]
    names = {cloud.network.hosts[number].name for number in busy}
    return {
        "mean_s": statistics.mean(took),
        "busy_mean_s": statistics.mean(took[number] for number in busy),
        "idle_mean_s": statistics.mean(took[n] for n in range(HOSTS) if n not in busy),
        "took_s": took,
        "epoch": table["epoch"],
        "busy_vnodes": sum(host.vnodes for host in hosts if host.host in names),
    }


@contextlib.contextmanager
def running(images: collective.Images, remap: bool) -> Iterator[collective.Cloud]:
    """Run a broker, the service and an agent on every host."""
    cloud = collective.Cloud(HOSTS, LINK_MBIT, images)
    cloud.network.source_mbit = SOURCE_MBIT
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(tempfile.TemporaryDirectory(prefix="acstor-p7-"))
        folder = pathlib.Path(made)
        net = stack.enter_context(cloud.network)
        broker = rabbitmq.RabbitMQ(folder)
        stack.callback(broker.kill)
        broker.start()
        broker.wait_ready()
        cloud.server = stack.enter_context(
            image_server.ImageServer(net.source, images.files.folder)
        )
        door = stack.enter_context(relay.Relay(net.source, broker.port))
        options = {"collection_s": COLLECTION_S, "dead_after": 60, "remap": remap}
        instance = decision.Instance(
            folder,
            "one",
            broker.url,
            f"sqlite:///{folder}/decision.sqlite",
            overload_share=OVERLOAD_SHARE,
            **options,
        )
        stack.enter_context(instance)
        url = f"rabbit://guest:guest@{door.address}/"
        for number, host in enumerate(net.hosts):
            agent = decision.agent(
                host,
                images.files,
                url,
                LINK_MBIT,
                cloud.server.url,
                collection_s=COLLECTION_S,
            )
            cloud.agents[number] = stack.enter_context(agent)
        for agent in cloud.agents.values():
            agent.wait_ready(DEADLINE_S)
        wait_followed(cloud, lambda rings: all(ring["hosts"] == HOSTS for ring in rings))
        yield cloud


def wait_followed(cloud: collective.Cloud, is_right: Callable[[list[dict[str, Any]]], bool]) -> int:
    """Wait until all agents have one table, and a right one; return its epoch."""

    def followed() -> bool:
        rings = [status["ring"] for status in cloud.status()]
        return len({ring["epoch"] for ring in rings}) == 1 and is_right(rings)

    runs.wait_for(followed, DEADLINE_S, "one table on all hosts", str)
    return int(cloud.status()[0]["ring"]["epoch"])


def settle(cloud: collective.Cloud, remap: bool) -> None:
    """Let the traffic be there for some collections; with remap, until it has moved v-nodes."""
    before = cloud.status()[0]["ring"]["epoch"]
    time.sleep(COLLECTIONS_BEFORE * COLLECTION_S)
    if remap:
        wait_followed(cloud, lambda rings: rings[0]["epoch"] > before)


@contextlib.contextmanager
def beside(net: network.Network, shares: list[float]) -> Iterator[None]:
    """Send what hosts are to carry: hosts that are equally busy send to each other in a circle."""
    with contextlib.ExitStack() as stack:
        for share in sorted(set(shares)):
            group = [host for host, own in zip(net.hosts, shares, strict=True) if own == share]
            for source, target in zip(group, [*group[1:], group[0]], strict=True):
                stack.enter_context(traffic.flow(source, target, share / 2 * LINK_MBIT))
        yield
