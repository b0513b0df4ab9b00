# SPDX-License-Identifier: Apache-2.0
"""Shows how the cost of a swarm grows with its hosts, and what the limits of prefetching do.

``python -m tests.chaos.swarm`` prints the tables of
doc/source/contributor/gossip.rst: the access patterns of Nicolae 2016 with
several limits, the parameters of trust, and collective reads of many hosts.
"""

import argparse
import dataclasses
import itertools
import sys
import time
from collections.abc import Sequence

import prettytable

from tests.fakes import lossy_network
from tests.fakes import swarm_hosts
from tests.fakes import swarm_world

LINK_BYTES_PER_S = 25e6 / 8
"""Rate of every link, the source's included."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run cost; chunks of all hosts together where nothing else is said."""

    completion: float  # time of the slowest guest / time that its bytes take on its link
    throughput: float  # mean of all guests but the first / link rate
    source: float  # chunks out of the source / different chunks read
    prefetched: float  # / chunks read
    wasted: float  # prefetched and never read / chunks read
    messages: float  # sent by a host on average
    advertisements: float  # the same, these alone
    run_s: float  # processor time of the simulation


PATTERNS = ("sync-same", "shifted-same", "sync-disjoint")


def simulate(
    pattern: str,
    host_count: int,
    chunk_count: int,
    settings: swarm_world.Settings,
    shift_s: float = 1.0,
) -> Outcome:
    """Let every host read ``chunk_count`` chunks on links of 25 Mbit/s, the source's included."""
    began_s = time.process_time()
    is_disjoint = pattern == "sync-disjoint"
    unique = chunk_count * (host_count if is_disjoint else 1)
    network = lossy_network.LossyNetwork(link_bytes_per_s=LINK_BYTES_PER_S)
    world = swarm_world.World(host_count, unique, network, settings)
    for n in range(host_count):
        begin = n * chunk_count if is_disjoint else 0
        ops = [swarm_world.Op("read", begin + k) for k in range(chunk_count)]
        # Guests never begin at the very same moment: 100 ms of jitter.
        start_s = n * shift_s if pattern == "shifted-same" else network.rng.random() * 0.1
        swarm_hosts.add_host(world, n, ops, start_s)
    world.run()
    hosts = list(world.hosts.values())
    assert all(host.answers == [1] * chunk_count for host in hosts)
    times_s = [host.finished_s - host.start_s for host in hosts]
    link_s = chunk_count * swarm_world.CHUNK_BYTES / LINK_BYTES_PER_S
    reads = host_count * chunk_count
    return Outcome(
        max(times_s) / link_s,
        sum(link_s / t for t in times_s[1:]) / len(times_s[1:]),
        world.source_chunks / unique,
        sum(host.prefetched for host in hosts) / reads,
        sum(host.wasted for host in hosts) / reads,
        sum(network.sent[host.host_id] for host in hosts) / host_count,
        world.sent["Advertise"] / host_count,
        time.process_time() - began_s,
    )


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.swarm", description=__doc__)
    parser.add_argument("--hosts", type=int, default=1000, help="largest swarm (default 1000)")
    parser.add_argument("--chunks", type=int, default=512, help="chunks read in the pattern runs")
    options = parser.parse_args()
    print("Access patterns, 16 hosts, 25 Mbit/s")
    print(pattern_table(options.chunks))
    print("Trust: first and gain, 16 hosts")
    print(trust_table(options.chunks))
    print("Growth, sync-same, 64 chunks")
    print(growth_table([n for n in (16, 64, 256, 1000) if n <= options.hosts]))
    return 0


def pattern_table(chunk_count: int) -> prettytable.PrettyTable:
    """What the limits do to the access patterns."""
    fields = ["pattern", "limit", "completion", "throughput", "source", "prefetched", "wasted"]
    table = prettytable.PrettyTable(fields, align="r")
    limits = {
        "0": swarm_world.Settings(limit=0),
        "256, no trust": swarm_world.Settings(first=None),
        "256": swarm_world.Settings(),
        "infinite": swarm_world.Settings(limit=None),
    }
    for pattern, (name, settings) in itertools.product(PATTERNS, limits.items()):
        done = simulate(pattern, 16, chunk_count, settings)
        figures = (done.completion, done.throughput, done.source, done.prefetched, done.wasted)
        table.add_row([pattern, name, *(f"{figure:.3f}" for figure in figures)])
    return table


def trust_table(chunk_count: int) -> prettytable.PrettyTable:
    """What FIRST and GAIN do to readers who follow each other, and to those who do not."""
    fields = ["first", "gain", "follow: throughput", "follow: prefetched", "diverge: wasted"]
    table = prettytable.PrettyTable(fields, align="r")
    for first, gain in itertools.product((2, 4, 8, 16), (1, 2, 4)):
        settings = swarm_world.Settings(first=first, gain=gain)
        follow = simulate("shifted-same", 16, chunk_count, settings)
        diverge = simulate("sync-disjoint", 16, chunk_count, settings)
        figures = (follow.throughput, follow.prefetched, diverge.wasted)
        table.add_row([first, gain, *(f"{figure:.3f}" for figure in figures)])
    return table


def growth_table(host_counts: Sequence[int]) -> prettytable.PrettyTable:
    """How completion and messages grow with the number of hosts."""
    fields = ["hosts", "homes refer", "completion", "source", "messages", "advertisements", "s"]
    table = prettytable.PrettyTable(fields, align="r")
    for children, count in itertools.product((None, 2), host_counts):
        done = simulate("sync-same", count, 64, swarm_world.Settings(children=children))
        figures = (done.completion, done.source, done.messages, done.advertisements, done.run_s)
        table.add_row([count, "yes" if children else "no", *(f"{f:.2f}" for f in figures)])
    return table


if __name__ == "__main__":
    sys.exit(main())
