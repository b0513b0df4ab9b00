# SPDX-License-Identifier: Apache-2.0
"""Runs the papers' access patterns on the exchange's core, on slow links.

``python -m tests.chaos.transfer_patterns`` prints tables: the patterns by prefetch limit, on links
with and without queues; the parameters of trust; the cost of one bad host for the others; growth
with the hosts; and the length of segments.  doc/source/contributor/exchange_design.rst draws the
conclusions.  Patterns and figures are those of the benchmarks (``evaluation.bench.patterns``),
which run them in the lab: benchmark M1 compares the two.
"""

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import prettytable

from acstor_agent.core.images import prefetcher
from acstor_agent.engine import actions
from acstor_agent.engine import lockstep
from acstor_agent.engine import priority
from acstor_agent.engine.ring import ring_view
from acstor_policies import learned_ring
from evaluation.bench import collective
from evaluation.bench import patterns
from tests.fakes import hostile_hosts
from tests.fakes import queue_world
from tests.fakes import transfer_hosts
from tests.fakes import transfer_readers
from tests.fakes import transfer_world
from tests.lab import network

LINK_MBIT = 25.0
CHUNK = transfer_world.CHUNK
BEYOND_CHUNKS = 128
VNODES = 100
DELAY_S = 1.0
START_S = 0.01
"""Simultaneous hosts start within this time."""
LONGEST_S = 36_000.0
SHOWN = (
    *("completion", "throughput", "source", "unread", "prefetched", "wasted", "messages"),
    "run_s",
)
LOCKSTEP = lockstep.Lockstep, learned_ring.LearnedRing
AGENT: dict[str, Any] = {"timeout_s": 5.0, "copies_limit": 16}
"""The agents' settings."""
BAD = ("dead", "frozen", "slow", "lying")
FILL_LINK_MBIT, FILL_CHUNKS, FILL_EVERY_S = 100.0, 8, 0.1
NAMES = ("sync-same", "shifted-same", "sync-disjoint")
SEGMENT_LINKS_MBIT = (25.0, 100.0, 400.0, 1000.0, 10_000.0)


class Outcome(NamedTuple):
    """Cost of a run; chunks of all hosts together unless stated otherwise.

    :param figures: measures of the benchmarks for the same pattern, by the same names
    :param prefetched: / chunks read
    :param wasted: prefetched and never read / chunks read
    :param messages: sent by a host, per chunk that it read
    :param run_s: processor time of the simulation
    """

    figures: patterns.Outcome
    prefetched: float
    wasted: float
    messages: float
    run_s: float

    @property
    def completion(self) -> float:
        """Time until the last guest has read everything / minimum by the links' rate."""
        return float(self.figures["completion"])

    @property
    def throughput(self) -> float:
        """Mean of all guests but the first / link rate."""
        return float(statistics.mean(self.figures["rate_over_link"]["each"][1:]))

    @property
    def source(self) -> float:
        """Chunks read from the source / different chunks read."""
        return float(self.figures["source_ratio"])

    @property
    def unread(self) -> float:
        """Chunks fetched for a guest and never read / chunks read."""
        return float(self.figures["unread_share"])


def pattern(
    name: str,
    hosts: int,
    chunks: int,
    beyond: int = BEYOND_CHUNKS,
    link_mbit: float = LINK_MBIT,
) -> patterns.Pattern:
    """Return a pattern by its name, with so many chunks read by each host.

    :param beyond: chunks of the image after the read ones, unless hosts read all of it
    """
    region_bytes, image_bytes = chunks * CHUNK, (chunks + beyond) * CHUNK
    if name == "sync-disjoint":
        return patterns.sync_disjoint(hosts, link_mbit, region_bytes)
    if name == "shifted-same":
        return patterns.shifted_same(hosts, link_mbit, region_bytes, image_bytes, DELAY_S)
    return patterns.sync_same(hosts, link_mbit, region_bytes, image_bytes)


def make_world(
    seed: int,
    hosts: int,
    chunks: int,
    link_bytes_s: float,
    burst_bytes: int | None,
    **table: Any,
) -> transfer_world.World:
    """Return a cloud without hosts; ``burst_bytes`` as in :func:`play`.

    :param table: parameters of its ring table
    """
    table["vnodes"] = VNODES
    if burst_bytes is None:
        return transfer_world.World(seed, hosts, chunks, link_bytes_per_s=link_bytes_s, **table)
    return queue_world.QueueWorld(seed, hosts, chunks, link_bytes_s, burst_bytes, **table)


def play(
    wanted: patterns.Pattern,
    limit: int | None = prefetcher.UNMATCHED_LIMIT,
    *,
    seed: int = 1,
    burst_bytes: int | None = network.BURST_BYTES,
    is_alone: bool = False,
    may_refer: bool = True,
    learns_ring: bool = False,
    segment_chunks: int = 1,
    **trust: Any,
) -> Outcome:
    """Let hosts read by a pattern; the source has the link of a host.

    :param limit: see :class:`prefetcher.Prefetcher`
    :param burst_bytes: links have queues, and token buckets of this depth (default: the lab's);
        None: they have neither
    :param is_alone: no host knows the others, as without a ring
    :param may_refer: homes may refer requesters to others
    :param learns_ring: hosts have the variant ``ring``
    :param segment_chunks: length of segments, and first length of a transfer
    :param trust: see :class:`transfer_readers.Reader`
    """
    began_s = time.process_time()
    chunks = wanted.image_bytes // CHUNK
    link = wanted.link_bytes_s, burst_bytes
    world = make_world(seed, wanted.hosts, chunks, *link, segment_chunks=segment_chunks)
    settings = {
        "topology": ring_view.on_ring,
        "lockstep": LOCKSTEP[learns_ring],
        "run_chunks": segment_chunks,
        **AGENT,
    }
    readers = []
    for name, reading in zip(world.names, wanted.readings, strict=True):
        host = world.add(name, **settings)
        host.may_refer = may_refer
        if is_alone:
            others = [other for other in world.names if other != name]
            host.take_table(world.make_table(2, without=others), None)
        readers.append(
            transfer_readers.Reader(world, host, _chunk_nos(reading), limit=limit, **trust)
        )
        start_s = reading.delay_s + world.rng.random() * START_S
        world.call_later(host, start_s, readers[-1].start)
    _run(world, readers)
    return _outcome(wanted, world, readers, time.process_time() - began_s)


def _chunk_nos(reading: collective.Reading) -> range:
    ((start, length),) = reading.spans
    return range(start // CHUNK, (start + length) // CHUNK)


def _run(world: transfer_world.World, readers: Sequence[transfer_readers.Reader]) -> None:
    world.network.run(LONGEST_S, lambda: all(reader.is_done for reader in readers))
    assert all(reader.is_done for reader in readers)


def _outcome(
    wanted: patterns.Pattern,
    world: transfer_world.World,
    readers: Sequence[transfer_readers.Reader],
    run_s: float,
) -> Outcome:
    seen = [
        collective.Seen(reader.began_s, reader.ended_s, reading.length)
        for reader, reading in zip(readers, wanted.readings, strict=True)
    ]
    reads = sum(len(reader.chunk_nos) for reader in readers)
    figures = {
        **patterns.outcome(wanted, seen, CHUNK * sum(world.source.reads.values())),
        "unread_share": sum(reader.unread for reader in readers) / reads,
    }
    return Outcome(
        figures,
        sum(reader.prefetched for reader in readers) / reads,
        sum(reader.wasted for reader in readers) / reads,
        sum(world.network.sent[name] for name in world.names) / reads,
        run_s,
    )


def bad_peer(
    kind: str,
    host_count: int,
    chunk_count: int,
    link_mbit: float = LINK_MBIT,
    seed: int = 1,
    learns_ring: bool = False,
) -> float:
    """Return the completion of all hosts but the last, a faulty one without reads.

    :param kind: ``well``, or one of BAD; a slow one has a twentieth of the rate
    :param learns_ring: hosts have the variant ``ring``
    """
    link_bytes_s = link_mbit * 1e6 / 8
    world = make_world(seed, host_count, chunk_count, link_bytes_s, network.BURST_BYTES)
    assert isinstance(world, queue_world.QueueWorld)
    *names, bad = world.names
    readers = []
    settings = {"topology": ring_view.on_ring, "lockstep": LOCKSTEP[learns_ring], **AGENT}
    for name in names:
        host = world.add(name, **settings)
        readers.append(transfer_readers.Reader(world, host, range(chunk_count)))
        world.call_later(host, world.rng.random() * START_S, readers[-1].start)
    liar = hostile_hosts.WrongBytesHost if kind == "lying" else transfer_hosts.Host
    world.add(bad, liar, **settings)
    world.worsen(bad, kind)
    _run(world, readers)
    link_s = chunk_count * CHUNK / link_bytes_s
    return max(reader.ended_s - reader.began_s for reader in readers) / link_s


def waits_s(
    bad: type[transfer_hosts.Host], chunk_count: int = 1024, guests: int = 1
) -> list[float]:
    """Return the waits of guests on two hosts that fill their caches beside a third host.

    Guests read half of the image, each its own part in random order, while their hosts fetch the
    other half.

    :param bad: the third host
    :param guests: of each host
    """
    world = make_world(1, 3, chunk_count, FILL_LINK_MBIT * 1e6 / 8, network.BURST_BYTES)
    *names, last = world.names
    half = chunk_count // 2
    readers = []
    for name in names:
        host = world.add(name, **AGENT)
        for number in range(guests):
            numbers = range(half + number * half // guests, half + (number + 1) * half // guests)
            order = world.rng.sample(numbers, len(numbers))
            readers.append(transfer_readers.Reader(world, host, order, limit=0, think_s=0.02))
            world.call_later(host, 0.0, readers[-1].start)
        for at in range(0, half, FILL_CHUNKS):
            wanted = world.chunks[at : at + FILL_CHUNKS], priority.Priority.HYDRATE
            world.call_later(host, at / FILL_CHUNKS * FILL_EVERY_S, host.read, *wanted, _ignore)
    world.add(last, bad, **AGENT)
    _run(world, readers)
    return [wait_s for reader in readers for wait_s in reader.waits_s]


def _ignore(answer: actions.CompleteRead) -> None:
    """Take the chunks of a background fill."""


class Row(NamedTuple):
    """A run in a table, by its parameters."""

    pattern: str
    hosts: int
    what: str
    options: dict[str, Any]


def table(rows: Sequence[Row], chunks: int, beyond: int = BEYOND_CHUNKS) -> prettytable.PrettyTable:
    """Return the costs of runs, on links without queues unless a row says otherwise."""
    shown = prettytable.PrettyTable(["pattern", "hosts", "what", *SHOWN], align="r")
    for name, hosts, what, options in rows:
        done = play(pattern(name, hosts, chunks, beyond), **{"burst_bytes": None, **options})
        shown.add_row([name, hosts, what, *(f"{getattr(done, field):.3f}" for field in SHOWN)])
    return shown


def limits(chunks: int) -> None:
    """Show the effect of prefetch limits, on links without queues and with."""
    chosen: dict[str, dict[str, Any]] = {
        "0": {"limit": 0},
        "256, no trust": {"limit": prefetcher.UNMATCHED_LIMIT, "first": None},
        "256": {"limit": prefetcher.UNMATCHED_LIMIT},
        "infinite": {"limit": None},
    }
    rows = [Row(name, 16, *one) for name, one in itertools.product(NAMES, chosen.items())]
    print("By limit, links without queues", table(rows, chunks), sep="\n")
    rows = [
        Row(name, 16, what, {**chosen[what], "burst_bytes": network.BURST_BYTES})
        for name, what in itertools.product(NAMES, ("0", "256"))
    ]
    print(f"By limit, token buckets of {network.BURST_BYTES} bytes", table(rows, chunks), sep="\n")


def trust(chunks: int) -> None:
    """Show the effect of FIRST and GAIN on readers that follow each other, and others."""
    rows = [
        Row(name, 16, f"{first}, {gain}", {"first": first, "gain": gain})
        for first, gain in ((2, 1), (2, 2), (2, 4), (4, 2), (8, 2), (16, 2))
        for name in ("shifted-same", "sync-disjoint")
    ]
    print("By FIRST and GAIN", table(rows, chunks), sep="\n")


def bad_hosts(chunks: int) -> None:
    """Show the cost of one bad host for the others."""
    shown = prettytable.PrettyTable(["hosts", "the last one is", "completion", "/ well"], align="r")
    for hosts in (3, 16):
        well = bad_peer("well", hosts, chunks)
        for kind in BAD:
            done = bad_peer(kind, hosts, chunks)
            shown.add_row([hosts, kind, f"{done:.3f}", f"{done / well:.3f}"])
    print("One bad host", shown, sep="\n")


def growth(most: int) -> None:
    """Show how completion and messages grow with the number of hosts."""
    rows = [
        Row("sync-same", count, what, {"limit": 0, "may_refer": what == "homes refer"})
        for what in ("homes answer", "homes refer")
        for count in (16, 64, 128, 256, 1000)
        if count <= most
    ]
    print("By number of hosts, 64 chunks", table(rows, 64, beyond=0), sep="\n")


def segments(chunks: int) -> None:
    """Show the cost of segment homes for hosts in lockstep, means of two seeds."""
    shown = prettytable.PrettyTable(["Mbit/s", "segment", *SHOWN], align="r")
    for link_mbit, length in itertools.product(SEGMENT_LINKS_MBIT, (1, 2, 4, 8, 16)):
        wanted = pattern("sync-same", 16, chunks, chunks // 8, link_mbit)
        done = [play(wanted, seed=seed, segment_chunks=length) for seed in (1, 2)]
        means = (statistics.mean([getattr(one, field) for one in done]) for field in SHOWN)
        shown.add_row([f"{link_mbit:g}", length, *(f"{mean:.3f}" for mean in means)])
    print("By length of segments", shown, sep="\n")


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.transfer_patterns")
    parser.add_argument("--hosts", type=int, default=256, help="largest swarm (256)")
    parser.add_argument("--chunks", type=int, default=512, help="chunks read in the patterns")
    tables = {
        "limits": limits,
        "trust": trust,
        "bad": bad_hosts,
        "growth": growth,
        "segments": segments,
    }
    parser.add_argument("--only", choices=tables, help="one of the tables")
    options = parser.parse_args()
    for name in [options.only] if options.only else tables:
        tables[name](options.hosts if name == "growth" else options.chunks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
