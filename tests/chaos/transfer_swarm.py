# SPDX-License-Identifier: Apache-2.0
"""Many hosts with the exchange's core in virtual time, under thousands of faults.

    python -m tests.chaos.transfer_swarm --seeds 0-1000
    python -m tests.chaos.transfer_swarm --seeds 17 --hosts 64

A seed decides the hosts, their options, the reads, and the faults with their times.  The invariants
in doc/source/contributor/exchange.rst ("Invariants") are checked between events
(``transfer_world.check_host``) and at the end.  Every tenth seed is calm: without faults the source
is read once for each content.
"""

import argparse
import math
import random
import sys
import time
import traceback
from collections.abc import Callable
from collections.abc import Sequence

from acstor_agent.engine import lockstep
from acstor_agent.engine import priority
from acstor_agent.engine.ring import ring_view
from acstor_common.model import ids
from acstor_policies import learned_ring
from acstor_policies import place_identity
from acstor_policies import topologies
from tests.fakes import hostile_hosts
from tests.fakes import transfer_guests
from tests.fakes import transfer_hosts
from tests.fakes import transfer_readers
from tests.fakes import transfer_world

Broken = transfer_world.Broken
Priority = priority.Priority
LOCKSTEP = lockstep.Lockstep, learned_ring.LearnedRing
TOPOLOGIES = None, ring_view.on_ring, topologies.nearest, topologies.all_hosts

STORM_S = 20.0
ENDS_S = 240.0
"""Limit of reads after the last repair; a liar's backoff is over a minute."""
EMPTY_S = 200.0
CHECK_S = 0.05
SLOW_LINK = 25e6 / 8
SLOW_SURPLUS = 0.15
CALM_EVERY = 10
FORMER_TABLE_LIFETIME_S = 15.0


class Run:
    """One run.

    :param hosts: their number; None: the seed decides
    :param learns_ring: hosts have the variant ``ring``
    """

    def __init__(
        self,
        seed: int,
        hosts: int | None = None,
        learns_ring: bool = False,
        run_chunks: int = 1,
        segment_chunks: int = 1,
    ) -> None:
        self.seed = seed
        self.rng = rng = random.Random(f"run/{seed}")
        self.rng_of_variants = random.Random(f"variants/{seed}")
        self.is_calm = seed % CALM_EVERY == 0
        count = hosts or rng.choice((2, 3, 4, 6, 8, 16))
        chunks = rng.choice((40, 100, 200))
        more = self._groups(count) if rng.random() < 0.3 else {}
        link = rng.choice((None, SLOW_LINK, 125e6))
        self.is_slow = link == SLOW_LINK
        if not self.is_calm and rng.random() < 0.3:
            more["names"] = self.rng_of_variants.choice(
                (place_identity.ByPlace, place_identity.ByOid)
            )
        more["segment_chunks"] = segment_chunks
        self.world = transfer_world.World(seed, count, chunks, link_bytes_per_s=link, **more)
        self.world.is_calm = self.is_calm
        self.world.store_s = 0.0 if self.is_calm else rng.choice((0.0, 0.01))
        knows_all = rng.random() < 0.3
        self.former_s: float = FORMER_TABLE_LIFETIME_S
        self.trace: list[str] = []
        settings = {
            "topology": rng.choice(TOPOLOGIES),
            "copies_limit": rng.choice((0, 1, 16)),
            "background_limit": rng.choice((2, 64)),
            "timeout_s": 10.0 if self.is_calm else rng.choice((2.0, 10.0)),
            "lost_after_s": 900.0,
            "lockstep": LOCKSTEP[learns_ring],
            "homes_keep": self.rng_of_variants.random() < 0.2,
            "run_chunks": run_chunks,
        }
        bad = 0 if self.is_calm else rng.randint(0, max(1, count // 4))
        for number, name in enumerate(self.world.names):
            kind = rng.choice(hostile_hosts.KINDS) if number < bad else transfer_hosts.Host
            host = self.world.add(name, kind, **settings)
            if not knows_all:  # chunks of unattached images are looked up there
                host.attach(rng.sample(transfer_world.IMAGES, rng.randint(0, 2)))
        self.guests = [
            self._guest(host)
            for host in self.world.hosts.values()
            for _ in range(rng.randint(1, 2))
        ]
        self.rng_of_looks = random.Random(f"followers/{seed}")
        self.followers = transfer_readers.followers(self.world, self.rng_of_looks)
        self._undo: list[Callable[[], None]] = []
        self.is_mended = False

    def _groups(self, count: int) -> dict[str, object]:
        pods = self.rng.choice((2, 3))
        return {
            "location": lambda n: f"site/p{n % pods}/h{n}",
            "threshold": 2,
            "outer_threshold": self.rng.choice((None, 3)),
        }

    def _guest(self, host: transfer_world.Host) -> transfer_guests.Guest:
        rng, world = self.rng, self.world
        chunks = list(world.chunks if rng.random() < 0.7 else world.others)
        way = rng.random()
        if way < 0.2:
            rng.shuffle(chunks)
        elif way < 0.4:
            at = rng.randrange(len(chunks))
            chunks = chunks[at:] + chunks[:at]
        size = rng.choice((1, 4, 16))
        batches = [chunks[at : at + size] for at in range(0, len(chunks), size)]
        deadline_s = math.inf if self.is_calm or rng.random() < 0.7 else rng.choice((0.3, 3.0))
        return transfer_guests.Guest(self, host, batches, rng.choice((1, 2, 8)), deadline_s)

    # Faults

    def _storm(self) -> None:
        if self.world.now > STORM_S:
            return
        fault = self.rng.choice(FAULTS)
        undo = fault(self)
        if undo is not None:
            self._undo.append(undo)
            self._at(self.rng.random() * 6, lambda: self._undo_fault(undo))
        self._at(self.rng.expovariate(2.0), self._storm)

    def _at(self, after_s: float, call: Callable[[], None]) -> None:
        self.world.network.call_at(self.world.now + after_s, call)

    def _undo_fault(self, undo: Callable[[], None]) -> None:
        if undo in self._undo:
            self._undo.remove(undo)
            undo()

    def note(self, what: str) -> None:
        """Record an action."""
        self.trace.append(f"{self.world.now:9.3f} {what}")

    def undo_all_faults(self) -> None:
        """Undo every fault; all hosts get one table, and guests no deadlines."""
        for undo in list(self._undo):
            self._undo_fault(undo)
        for guest in self.guests:
            guest.deadline_s = math.inf
        self.is_mended = True
        self._remap(self.world.names, 0.0)
        self.note("all is mended")

    def _pair(self) -> tuple[ids.HostId, ids.HostId]:
        one, other = self.rng.sample(self.world.names, 2)
        return one, other

    def kill(self) -> Callable[[], None] | None:
        """Kill a host; it restarts, perhaps with an empty cache."""
        host = self.world.hosts[self.rng.choice(self.world.names)]
        if host.is_dead:
            return None
        is_wiped = self.rng.random() < 0.3
        self.note(f"kill {host.name}{' and its cache' if is_wiped else ''}")
        self.world.kill(host, is_wiped)

        def end() -> None:
            self.note(f"{host.name} is back")
            host.start()
            for reader in (*self.guests, *self.followers):
                if reader.host is host:
                    reader.begin_anew()

        return end

    def break_links(self) -> None:
        """Break the connections of two hosts."""
        one, other = self._pair()
        self.note(f"connections of {one} and {other} break")
        self.world.break_(one, other)

    def silence(self) -> Callable[[], None]:
        """Drop all messages between two hosts."""
        one, other = self._pair()
        self.note(f"silence between {one} and {other}")
        end = self.world.silence(one, other)
        return lambda: (self.note(f"no silence between {one} and {other}"), end())[1]

    def slow_host(self) -> Callable[[], None]:
        """Delay all messages of a host."""
        name = self.rng.choice(self.world.names)
        delay_s = self.rng.choice((0.05, 0.4, 1.5))
        self.note(f"{name} is {delay_s} s late")
        self.world.delays[name] = delay_s

        def end() -> None:
            self.note(f"{name} is in time")
            self.world.delays.pop(name, None)

        return end

    def break_source(self) -> Callable[[], None] | None:
        """Make the source fail."""
        source = self.world.source
        if source.way or source.gone or source.bad:
            return None
        way = self.rng.choice(("slow", "fails", "hangs", "gone", "bad"))
        self.note(f"the source: {way}")
        if way == "gone":
            source.gone = {self.rng.choice((transfer_world.IMAGE, transfer_world.OTHER))}
        elif way == "bad":
            source.bad = {chunk.cid for chunk in self.world.chunks if self.rng.random() < 0.1}
        else:
            source.way = way

        def end() -> None:
            self.note("the source is well")
            source.way, source.gone, source.bad = "", set(), set()

        return end

    def refuse(self) -> Callable[[], None] | None:
        """Make a host forget an image."""
        host = self.world.hosts[self.rng.choice(self.world.names)]
        image_id = self.rng.choice((transfer_world.IMAGE, transfer_world.OTHER))
        if host.refuses is not None:
            return None
        self.note(f"{host.name} refuses {image_id[:8]}")
        host.refuses = image_id

        def end() -> None:
            self.note(f"{host.name} refuses nothing")
            host.refuses = None

        return end

    def evict(self) -> None:
        """Evict chunks from caches."""
        host = self.world.hosts[self.rng.choice(self.world.names)]
        if host.is_dead:
            return
        cids = [cid for cid in host.cache if self.rng.random() < 0.3]
        self.note(f"{len(cids)} chunks leave {host.name}")
        host.evict(cids)

    def remap(self) -> None:
        """Publish another table; hosts get it sooner or later, some never."""
        known = [name for name in self.world.names if self.rng.random() < 0.8]
        self._remap(known, self.rng.choice((0.0, 0.5, 5.0)))

    def _remap(self, known: Sequence[ids.HostId], within_s: float) -> None:
        world = self.world
        away = [] if self.is_mended else [n for n in world.names[1:] if self.rng.random() < 0.1]
        world.table = table = world.make_table(world.table.epoch + 1, self._shape(), away)
        left = f", without {', '.join(away)}" if away else ""
        self.note(f"table {table.epoch} for {len(known)} hosts within {within_s} s{left}")
        for name in known:
            host = world.hosts[name]

            def take(host: transfer_world.Host = host) -> None:
                now = host.core.context.ring.table
                if host.is_dead or now.epoch >= table.epoch:
                    return
                host.take_table(table, now)
                world.call_later(host, self.former_s, self._forget_former, host, table)

            self._at(self.rng.random() * within_s, take)

    def _forget_former(self, host: transfer_world.Host, table: object) -> None:
        if host.core.context.ring.table is table:
            host.take_table(table, None)

    def _shape(self) -> dict[str, object]:
        table = self.world.table
        return {
            "location": self.world.location_of,
            "threshold": table.threshold,
            "outer_threshold": table.outer_threshold,
        }

    def background(self) -> None:
        """Let a host fetch in the background."""
        host = self.world.hosts[self.rng.choice(self.world.names)]
        if host.is_dead:
            return
        urgency = self.rng.choice((Priority.READAHEAD, Priority.PRE_SEED, Priority.HYDRATE))
        chunks = self.rng.sample(self.world.chunks, self.rng.randint(1, len(self.world.chunks)))
        host.read(chunks, urgency, lambda answer: None)

    # The run

    def go(self) -> None:
        """Do the whole run.

        :raises Broken: a guarantee does not hold
        """
        world = self.world
        for guest in self.guests:
            start_s = self.rng.random() * 0.2
            world.call_later(guest.host, start_s, guest.begin_anew)
        if not self.is_calm:
            self._at(0.1, self._storm)
        self._look()
        world.network.run(STORM_S if not self.is_calm else 0.0)
        self.undo_all_faults() if not self.is_calm else None
        readers = (*self.guests, *self.followers)
        self._until(lambda: all(reader.is_done for reader in readers), ENDS_S, self._waits)
        self._until(lambda: not world.left(), EMPTY_S, lambda: str(world.left()))
        if self.is_calm:
            self._must_be_read_once()

    def _look(self) -> None:
        self.world.check()
        if self.followers:
            self.rng_of_looks.choice(self.followers).check()
        self._at(CHECK_S, self._look)

    def _until(self, is_done: Callable[[], bool], limit_s: float, why: Callable[[], str]) -> None:
        end_s = self.world.now + limit_s
        while not is_done():
            if self.world.now >= end_s:
                raise Broken(f"not in {limit_s:g} s: {why()}")
            self.world.network.run(self.world.now + 0.25)
            self.world.network.now += 1e-9
        self.world.check()

    def _waits(self) -> str:
        waits = [f"{g.host.name}: {len(g.left) + len(g.in_flight)}" for g in self.guests]
        waits += [f"{f.host.name}, follower" for f in self.followers if not f.is_done]
        return f"batches that are not read: {waits}, left {self.world.left()}"

    def _must_be_read_once(self) -> None:
        groups = len({self.world.table.group_of(name) for name in self.world.names})
        outer = self.world.table.outer_group_of(self.world.names[0])
        homes = 1 if outer is not None else groups
        places = self.world.places()  # images that share a chunk may have it in other segments
        reads = self.world.source.reads
        surplus = sum(max(0, count - homes * places[cid]) for cid, count in reads.items())
        wished = 0  # guests that benefited
        for host in self.world.hosts.values():
            wished += host.core.counters.hedges + host.core.counters.source_preferred
        if self.is_slow:  # a host with a full link is skipped sometimes: others read for it
            wished += int(SLOW_SURPLUS * len(reads))
        if surplus > wished:
            raise Broken(
                f"{surplus} of {sum(reads.values())} reads are too many, {wished} are accounted for"
            )


FAULTS: tuple[Callable[[Run], Callable[[], None] | None], ...] = (
    Run.kill,
    Run.break_links,
    Run.silence,
    Run.slow_host,
    Run.break_source,
    Run.refuse,
    Run.evict,
    Run.remap,
    Run.background,
)


def play(
    seed: int,
    hosts: int | None = None,
    learns_ring: bool = False,
    run_chunks: int = 1,
    segment_chunks: int = 1,
    in_flight_limit_bytes: int = transfer_world.MAX_IN_FLIGHT_BYTES,
) -> tuple[Run, BaseException | None]:
    """Do one run; return it, and its error."""
    run = Run(seed, hosts, learns_ring, run_chunks, segment_chunks)
    run.world.in_flight_limit_bytes = in_flight_limit_bytes
    try:
        run.go()
    except Exception as e:
        return run, e
    return run, None


def report_failure(
    run: Run,
    error: BaseException,
    hosts: int | None,
    learns_ring: bool = False,
    run_chunks: int = 1,
    segment_chunks: int = 1,
) -> None:
    """Print the error, and how to repeat it."""
    print(f"seed {run.seed}: {type(error).__name__}: {error}")
    if not isinstance(error, Broken):
        traceback.print_exception(error)
    print("\n".join(run.trace[-30:]))
    more = (f" --hosts {hosts}" if hosts else "") + " --ring" * learns_ring
    more += f" --run-chunks {run_chunks}" if run_chunks > 1 else ""
    more += f" --segment-chunks {segment_chunks}" if segment_chunks > 1 else ""
    print(f"The same again: python -m tests.chaos.transfer_swarm --seeds {run.seed}{more}")


def main() -> int:
    """Run seeds, and print those with errors."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.transfer_swarm")
    parser.add_argument("--seeds", default="0-99", help="one, or FIRST-LAST (0-99)")
    parser.add_argument("--hosts", type=int, help="so many; else the seed decides")
    parser.add_argument("--ring", action="store_true", help="with the variant of that name")
    parser.add_argument("--run-chunks", type=int, default=1, help="of a transfer, at most")
    parser.add_argument("--segment-chunks", type=int, default=1, help="chunks that have one home")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so long")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    began_s, failed, done, answers = time.monotonic(), [], 0, 0
    for seed in range(int(first), int(last or first) + 1):
        if time.monotonic() - began_s > options.seconds:
            break
        how = options.hosts, options.ring, options.run_chunks, options.segment_chunks
        run, error = play(seed, *how)
        done, answers = done + 1, answers + sum(guest.answers for guest in run.guests)
        if error is not None:
            failed.append(seed)
            report_failure(run, error, *how)
    took_s = time.monotonic() - began_s
    print(f"{done} seeds, {answers} reads compared, {took_s:.0f} s; broken: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
