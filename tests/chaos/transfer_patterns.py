# SPDX-License-Identifier: Apache-2.0
"""Shows what the exchange's core does with the papers' access patterns, on links of 25 Mbit/s.

``python -m tests.chaos.transfer_patterns`` prints the tables of doc/source/contributor/gossip.rst:
the patterns by limit of prefetching, on links with and without queues; the parameters of trust;
what one bad host costs the others; and growth with the hosts.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import prettytable

from acstor_agent.core.exchange import neighbours
from acstor_agent.core.exchange import prefetch
from tests.fakes import queue_world
from tests.fakes import transfer_hosts
from tests.fakes import transfer_readers
from tests.fakes import transfer_strangers
from tests.fakes import transfer_world

LINK_BYTES_PER_S = 25e6 / 8
PATTERNS = ("sync-same", "shifted-same", "sync-disjoint")


class Outcome(NamedTuple):
    """What a run cost; chunks of all hosts together where nothing else is said.

    :param completion: time of the slowest guest / time that its bytes take on its link
    :param throughput: mean of all guests but the first / link rate
    :param source: chunks out of the source / different chunks read
    :param prefetched: / chunks read
    :param wasted: prefetched and never read / chunks read
    :param messages: sent by a host, for a chunk that it read
    :param run_s: processor time of the simulation
    """

    completion: float
    throughput: float
    source: float
    prefetched: float
    wasted: float
    messages: float
    run_s: float


def simulate(
    pattern: str,
    host_count: int,
    chunk_count: int,
    limit: int | None,
    window: int = 8,
    seed: int = 1,
    burst_bytes: int | None = None,
    may_refer: bool = True,
    **trust: Any,
) -> Outcome:
    """Let every host read ``chunk_count`` chunks; the source has the link of a host.

    :param burst_bytes: links have queues, and token buckets of this depth; None: they have neither
    :param may_refer: homes may send who asks to others
    :param trust: see :class:`transfer_readers.Reader`
    """
    began_s = time.process_time()
    is_disjoint = pattern == "sync-disjoint"
    unique = chunk_count * (host_count if is_disjoint else 1)
    world: transfer_world.World
    if burst_bytes is None:
        world = transfer_world.World(seed, host_count, unique, link_bytes_per_s=LINK_BYTES_PER_S)
    else:
        world = queue_world.QueueWorld(seed, host_count, unique, LINK_BYTES_PER_S, burst_bytes)
    # Nothing is lost on slow links, it only waits.
    settings: dict[str, Any] = {"topology": neighbours.Topology.RING, "timeout_s": 1e6}
    readers = []
    for number, name in enumerate(world.names):
        first = number * chunk_count if is_disjoint else 0
        host = world.add(name, **settings)
        host.may_refer = may_refer
        chunk_nos = range(first, first + chunk_count)
        readers.append(
            transfer_readers.Reader(world, host, chunk_nos, limit=limit, window=window, **trust)
        )
        start_s = number * 1.0 if pattern == "shifted-same" else world.rng.random() * 0.1
        world.later(host, start_s, readers[-1].start)
    world.network.run(36_000.0, lambda: all(reader.is_done for reader in readers))
    assert all(reader.is_done for reader in readers)
    times_s = [reader.ended_s - reader.began_s for reader in readers]
    link_s = chunk_count * transfer_world.CHUNK / LINK_BYTES_PER_S
    reads = host_count * chunk_count
    return Outcome(
        max(times_s) / link_s,
        sum(link_s / took_s for took_s in times_s[1:]) / len(times_s[1:]),
        sum(world.source.reads.values()) / unique,
        sum(reader.prefetched for reader in readers) / reads,
        sum(reader.wasted for reader in readers) / reads,
        sum(world.network.sent[name] for name in world.names) / reads,
        time.process_time() - began_s,
    )


def bad_peer(kind: str, host_count: int, chunk_count: int, window: int = 10) -> float:
    """Return the completion of all hosts but the last, which reads nothing and is not well.

    :param kind: ``well``, ``dead``, ``frozen``, ``slow`` (a twentieth of the rate), ``lying``
    """
    world = queue_world.QueueWorld(1, host_count, chunk_count, LINK_BYTES_PER_S, 32_768)
    *names, bad = world.names
    readers = []
    for name in names:
        host = world.add(name, topology=neighbours.Topology.RING, timeout_s=5.0)
        readers.append(transfer_readers.Reader(world, host, range(chunk_count), window=window))
        world.later(host, world.rng.random() * 0.1, readers[-1].start)
    liar = transfer_strangers.Liar if kind == "lying" else transfer_hosts.Host
    world.add(bad, liar, topology=neighbours.Topology.RING, timeout_s=5.0)
    world.worsen(bad, kind)
    world.network.run(3600.0, lambda: all(reader.is_done for reader in readers))
    assert all(reader.is_done for reader in readers)
    link_s = chunk_count * transfer_world.CHUNK / LINK_BYTES_PER_S
    return max(reader.ended_s - reader.began_s for reader in readers) / link_s


class Row(NamedTuple):
    """A run of a table, by what is chosen in it."""

    pattern: str
    hosts: int
    what: str
    options: dict[str, Any]


def table(rows: Sequence[Row], chunk_count: int) -> prettytable.PrettyTable:
    """Return what runs cost."""
    fields = ["pattern", "hosts", "what", *(field for field in Outcome._fields)]
    shown = prettytable.PrettyTable(fields, align="r")
    for pattern, hosts, what, options in rows:
        done = simulate(pattern, hosts, chunk_count, window=10, **options)
        shown.add_row([pattern, hosts, what, *(f"{figure:.3f}" for figure in done)])
    return shown


def limits(chunk_count: int) -> None:
    """Show what the limits of prefetching do, on links without queues and with."""
    chosen: dict[str, dict[str, Any]] = {
        "0": {"limit": 0},
        "256, no trust": {"limit": prefetch.LIMIT, "first": None},
        "256": {"limit": prefetch.LIMIT},
        "infinite": {"limit": None},
    }
    rows = [Row(p, 16, *one) for p, one in itertools.product(PATTERNS, chosen.items())]
    print("By limit, links without queues", table(rows, chunk_count), sep="\n")
    for burst in (131_072, 32_768):
        rows = [
            Row(pattern, 16, name, {**chosen[name], "burst_bytes": burst})
            for pattern, name in itertools.product(PATTERNS, ("0", "256"))
        ]
        print(f"By limit, token buckets of {burst} bytes", table(rows, chunk_count), sep="\n")


def trust(chunk_count: int) -> None:
    """Show what FIRST and GAIN do to readers who follow each other, and to those who do not."""
    rows = [
        Row(
            pattern, 16, f"{first}, {gain}", {"limit": prefetch.LIMIT, "first": first, "gain": gain}
        )
        for first, gain in ((2, 1), (2, 2), (2, 4), (4, 2), (8, 2), (16, 2))
        for pattern in ("shifted-same", "sync-disjoint")
    ]
    print("By FIRST and GAIN", table(rows, chunk_count), sep="\n")


def bad_hosts(chunk_count: int) -> None:
    """Show what one bad host costs the others."""
    shown = prettytable.PrettyTable(["hosts", "the last one is", "completion", "/ well"], align="r")
    for hosts in (3, 16):
        well = bad_peer("well", hosts, chunk_count)
        for kind in ("dead", "frozen", "slow", "lying"):
            done = bad_peer(kind, hosts, chunk_count)
            shown.add_row([hosts, kind, f"{done:.3f}", f"{done / well:.3f}"])
    print("One bad host", shown, sep="\n")


def growth(most: int) -> None:
    """Show how completion and messages grow with the number of hosts."""
    rows = [
        Row("sync-same", count, what, {"limit": 0, "may_refer": what == "homes refer"})
        for what in ("homes answer", "homes refer")
        for count in (16, 64, 256, 1000)
        if count <= most
    ]
    print("By number of hosts, 64 chunks", table(rows, 64), sep="\n")


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.transfer_patterns")
    parser.add_argument("--hosts", type=int, default=256, help="largest swarm (256)")
    parser.add_argument("--chunks", type=int, default=512, help="chunks read in the patterns")
    tables = {"limits": limits, "trust": trust, "bad": bad_hosts, "growth": growth}
    parser.add_argument("--only", choices=tables, help="one of the tables")
    options = parser.parse_args()
    for name in [options.only] if options.only else tables:
        tables[name](options.hosts if name == "growth" else options.chunks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
