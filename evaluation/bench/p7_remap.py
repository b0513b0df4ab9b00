# SPDX-License-Identifier: Apache-2.0
"""P7: all hosts read one region beside uneven traffic, with remap and without.

This is the pattern of Wu et al.  2017 (ACStor), 5.4: the traffic of hosts, in plus out, has a mean
of 56 % of the link's rate and a coefficient of variation of 1.2.  Some hosts have the maximum load;
pairs of them send to each other at the same rate both ways.  The paper compares mean boot times, so
here it is the mean time of the hosts' readings.  The matrix, the image and the order of reads are
the same in all runs.

A busy host's own download has only the rate that its traffic leaves, from any sender.  So a busy
and an idle host also download the region from the source, each alone, beside the same traffic; the
mean over the hosts of these times is approximately the lower bound of any exchange.  P7 is the mean
with remap, divided by it.

P7a is the gain: acstor without remap, divided by acstor with it, one option of the service.  The
paper's 2.6 is against a cache whose hosts ask only homes.  So P7b is the paper's comparison: agents
without advertisements, referrals, hedges and remap, against all of acstor.  P7c is the effect of
remap on the CV of all traffic (Equation 2): of the bytes on hosts' links, both ways, while hosts
read.  P7d is the number of moved v-nodes over the necessary ones.

A real acstor-decision with a real broker decides.  Reading starts after some collections with the
traffic, and with remap when all agents have the new table.
"""

import contextlib
import itertools
import os
import shutil
import statistics
import time
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

from acstor_common.model import geometry
from evaluation.bench import collective
from evaluation.bench import harness
from tests.lab import decision
from tests.lab import image_server
from tests.lab import local
from tests.lab import network
from tests.lab import runs
from tests.lab import traffic
from tests.lab import tuned
from tests.lab import watch

HOSTS = int(os.environ.get("ACSTOR_BENCH_P7_HOSTS", "16"))
LINK_MBIT = 12
SOURCE_MBIT = 100
REGION_BYTES = 4 * geometry.MIB
MEAN, CV = 0.56, 1.2
OVERLOAD_SHARE = 0.7
COLLECTION_S = 2.0
COLLECTIONS_BEFORE = 6
DEADLINE_S = 120.0
HOMES_ONLY = {"variants": "no-advertisements,no-referrals,no-hedges"}
WAYS: dict[str, tuple[dict[str, object], bool]] = {
    "homes only": (HOMES_ONLY, False),
    "homes only, remap": (HOMES_ONLY, True),
    "without remap": ({}, False),
    "with remap": ({}, True),
}
"""Options of [acstor_agent], and whether v-nodes may move."""


@harness.measures("P7", "P7a", "P7b", "P7c", "P7d")
def run(say: harness.Say) -> harness.Result:
    """Let all hosts read in each way."""
    if shutil.which("/usr/sbin/rabbitmq-server") is None:
        raise harness.CannotRun("rabbitmq-server is not installed")
    shares = traffic.loads(HOSTS, MEAN, CV)
    found = {}
    with collective.images(local.random_bytes(REGION_BYTES, seed=7)) as images:
        for name, (options, remap) in WAYS.items():
            one = found[name] = outcome(images, shares, options, remap)
            say(
                f"{name}: mean {one['mean_s']:.1f} s (idle hosts {one['idle_mean_s']:.1f}, busy "
                f"{one['busy_mean_s']:.1f}; alone from the source {one['limit_s']:.1f}), CV of "
                f"all traffic {one['traffic_cv']:.2f}, {one['moved']} of "
                f"{sum(one['vnodes'].values())} v-nodes moved"
            )
    return harness.Result(
        {
            "P7": quotient(found, "with remap", "with remap", "mean_s", "limit_s"),
            "P7a": quotient(found, "without remap", "with remap"),
            "P7b": quotient(found, "homes only", "with remap"),
            "P7c": quotient(found, "with remap", "without remap", "traffic_cv"),
            "P7d": quotient(found, "with remap", "with remap", "moved", "had_to_move"),
        },
        {
            "runs": found,
            "shares": shares,
            "link_mbit": LINK_MBIT,
            "region_bytes": REGION_BYTES,
            "idle_hosts_ratio": quotient(found, "without remap", "with remap", "idle_mean_s"),
            "homes_only_ratio": quotient(found, "homes only", "homes only, remap"),
        },
    )


def quotient(
    found: dict[str, dict[str, Any]], one: str, other: str, of: str = "mean_s", by: str = ""
) -> float:
    """Return a figure of one run, divided by one of another (by default the same one)."""
    return float(found[one][of] / found[other][by or of])


def outcome(
    images: collective.Images, shares: list[float], options: dict[str, object], remap: bool
) -> dict[str, Any]:
    """Return each host's read time, and the v-nodes and link bytes meanwhile."""
    hosts, region_bytes = len(shares), len(images.data(0))
    busy = [number for number, share in enumerate(shares) if share > MEAN]
    with running(images, options, remap, hosts) as scene, beside(scene.cloud.network, shares):
        cloud = scene.cloud
        settle(scene, remap)
        limit_s = alone(cloud, busy)
        readings = {n: collective.Reading(((0, region_bytes),)) for n in range(hosts)}
        cloud.attach(readings)
        before = cloud.network.link_bytes()
        seen = cloud.read(readings)
        carried = [
            (now - before[name]).sent + (now - before[name]).received
            for name, now in cloud.network.link_bytes().items()
            if name != cloud.network.source.name
        ]
        tables = scene.watch.tables()
        exchange = [status["exchange"] for status in cloud.status()]
    took = [seen[number].took_s for number in range(hosts)]
    pairs = [(old, new) for old, new in itertools.pairwise(tables) if new.reason == "overload"]
    return {
        "mean_s": statistics.mean(took),
        "busy_mean_s": statistics.mean(took[number] for number in busy),
        "idle_mean_s": statistics.mean(took[n] for n in range(hosts) if n not in busy),
        "limit_s": limit_s,
        "took_s": took,
        "traffic_cv": statistics.pstdev(carried) / statistics.mean(carried),
        "vnodes": tables[-1].vnodes,
        "moved": sum(new.moved for _, new in pairs),
        "had_to_move": sum(surplus(old.vnodes, new.vnodes) for old, new in pairs),
        "tables": [table._asdict() for table in tables],
        "served_bytes": [one["served_bytes"] for one in exchange],
        "source_bytes": [one["source_bytes"] for one in exchange],
        "referrals": sum(one["referrals_followed"] for one in exchange),
        "hedges": sum(one["hedged_requests"] for one in exchange),
    }


def surplus(old: dict[str, int], new: dict[str, int]) -> int:
    """Return the sum of v-nodes that hosts have lost."""
    return sum(max(0, count - new.get(host, 0)) for host, count in old.items())


class Scene(NamedTuple):
    """Hosts with agents, and the service's data on them."""

    cloud: collective.Cloud
    service: decision.Service
    watch: watch.Watch


@contextlib.contextmanager
def running(
    images: collective.Images,
    options: dict[str, object],
    remap: bool,
    hosts: int,
    link_mbit: float = LINK_MBIT,
) -> Iterator[Scene]:
    """Run a broker, the service and an agent on every host."""
    cloud = collective.Cloud(hosts, link_mbit, images)
    cloud.network.source_mbit = SOURCE_MBIT
    policy = {"dead_after_samples": 60, "remap": remap}
    constants = {tuned.COLLECTION_S: COLLECTION_S}
    with contextlib.ExitStack() as stack:
        net = stack.enter_context(cloud.network)
        server = image_server.ImageServer(net.source, images.files.folder)
        cloud.server = stack.enter_context(server)
        overload = {**constants, tuned.OVERLOAD_SHARE: OVERLOAD_SHARE}
        service = decision.Service(net, constants=overload, **policy)
        stack.enter_context(service)
        own = {"constants": constants, **options}
        joined = service.join(net.hosts, link_mbit, server.url, **own)
        cloud.agents = dict(enumerate(joined))
        yield Scene(cloud, service, stack.enter_context(watch.Watch(service)))


def settle(scene: Scene, remap: bool) -> None:
    """Keep the traffic for some collections; with remap, until all use the new table."""
    time.sleep(COLLECTIONS_BEFORE * COLLECTION_S)

    def have_followed() -> bool:
        newest = scene.watch.tables()[-1]
        epochs = {status["ring"]["epoch"] for status in scene.cloud.status()}
        return epochs == {newest.epoch} and (newest.reason == "overload" or not remap)

    runs.wait_for(have_followed, DEADLINE_S, "the new table on all hosts", str)


def alone(cloud: collective.Cloud, busy: list[int]) -> float:
    """Return the mean time for the region from the source without other readers.

    It measures one busy and one idle host, since hosts do not differ otherwise.
    """
    url = f"{cloud.server.url}/{cloud.images.path(0).name}"
    hosts = len(cloud.network.hosts)
    idle = next(number for number in range(hosts) if number not in busy)
    took = []
    for number in (busy[0], idle):
        host = cloud.network.hosts[number]
        took.append(
            float(host.run(["curl", "-sSf", "-o", "/dev/null", "-w", "%{time_total}", url]))
        )
    return (len(busy) * took[0] + (hosts - len(busy)) * took[1]) / hosts


@contextlib.contextmanager
def beside(
    net: network.Network, shares: list[float], link_mbit: float = LINK_MBIT
) -> Iterator[None]:
    """Send the hosts' traffic: equally busy hosts send to each other in a ring."""
    with contextlib.ExitStack() as stack:
        for share in sorted(set(shares)):
            group = [host for host, own in zip(net.hosts, shares, strict=True) if own == share]
            for source, target in zip(group, [*group[1:], group[0]], strict=True):
                stack.enter_context(traffic.flow(source, target, share / 2 * link_mbit))
        yield
