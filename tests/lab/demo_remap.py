# SPDX-License-Identifier: Apache-2.0
"""The demo's second act: other traffic on one host, and a remap of requests.

Programs on all hosts read an uncached image in random order at a steady pace.  Then the first
host sends to a host outside, at nearly the rate of its link.  The decision service observes the
load and moves v-nodes; no other component is configured.
"""

import dataclasses
import functools
import mmap
import os
import pathlib
import random
import statistics
import time
from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

from acstor_common import errors
from acstor_common.model import geometry
from tests.lab import agents
from tests.lab import background
from tests.lab import network
from tests.lab import traffic
from tests.lab import watch

IMAGE_BYTES = 128 * geometry.MIB
CHUNK_BYTES = geometry.DEFAULT_CHUNK_BYTES
READS_PER_S = 16
"""Per host."""
CALM_S = 10.0
AFTER_S = 12.0
REMAP_DEADLINE_S = 60.0
TRAFFIC_SHARE = 0.95
"""Share of the first host's link."""
SAY_EVERY_S = 2.0
CHECK_INTERVAL_S = 0.1
MBIT = 1e6 / 8

Say = Callable[[str], None]


class Read(NamedTuple):
    """One read of a program."""

    host: str
    at_s: float
    took_s: float


@dataclasses.dataclass
class Phase:
    """Measurements between two moments.

    :param given_share: the busy host's share of all chunk bytes sent by hosts
    :param read_ms: mean time of a read on the other hosts
    """

    name: str
    seconds: float
    given_share: float
    read_ms: float
    reads: int


@dataclasses.dataclass
class RemapResult:
    """The act's measurements; times are seconds after the start of the programs."""

    busy: str
    traffic_mbit: float
    traffic_s: float
    remap_s: float
    moved: int
    vnodes_before: dict[str, int]
    vnodes_after: dict[str, int]
    phases: list[Phase]
    loads: list[watch.Load]


class Programs(background.Background):
    """Context manager: a reader on each host, at a steady pace."""

    def __init__(self, running: Sequence[agents.Agent], image_id: str) -> None:
        self.reads: list[Read] = []
        self._failures: list[str] = []
        super().__init__(
            functools.partial(self._run, agent.host.name, agent.image_path(image_id))
            for agent in running
        )

    def check(self) -> None:
        """Check for failures.

        :raises errors.Unusable: a read failed
        """
        if self._failures:
            raise errors.Unusable("a program's read", self._failures[0])

    def _run(self, host: str, path: pathlib.Path) -> None:
        try:
            self._read(host, path)
        except OSError as e:
            self._failures.append(f"{host}: {e}")

    def _read(self, host: str, path: pathlib.Path) -> None:
        offsets = list(range(0, path.stat().st_size, CHUNK_BYTES))
        random.Random(host).shuffle(offsets)
        buffer = mmap.mmap(-1, CHUNK_BYTES)  # O_DIRECT needs alignment
        with open(os.open(path, os.O_RDONLY | os.O_DIRECT), "rb", buffering=0) as image:
            due_s = time.monotonic()
            for offset in offsets:
                began_s = time.monotonic()
                os.preadv(image.fileno(), [buffer], offset)
                now_s = time.monotonic()
                self.reads.append(Read(host, time.time(), now_s - began_s))
                due_s = max(due_s + 1 / READS_PER_S, now_s)
                if self.is_over.wait(due_s - now_s):
                    return


def play(
    running: Sequence[agents.Agent],
    outside: network.Host,
    link_mbit: float,
    image_id: str,
    seen: watch.Watch,
    say: Say,
) -> RemapResult:
    """Run programs on all hosts, send traffic from the first one, follow the remap.

    :param outside: a host without an agent
    :raises errors.Unusable: v-nodes did not move, or a read failed
    """
    busy, rate = running[0].host, TRAFFIC_SHARE * link_mbit
    before = seen.tables()[-1]
    began_s = time.time()
    with Programs(running, image_id) as programs:
        follower = _Follower(programs, seen, began_s, say)
        follower.follow(lambda: time.time() > began_s + CALM_S, 2 * CALM_S)
        traffic_s = time.time()
        say(f"now {busy.name} sends {rate:.0f} Mbit/s to a host outside")
        with traffic.flow(busy, outside, rate):
            follower.follow(lambda: _remap(seen, before.epoch) is not None, REMAP_DEADLINE_S)
            remapped = _remap(seen, before.epoch) or before
            say(f"epoch {remapped.epoch}: {remapped.moved} v-nodes leave {remapped.overloaded}")
            end_s = time.time() + AFTER_S
            follower.follow(lambda: time.time() > end_s, 2 * AFTER_S)
    loads, end_s = seen.loads(began_s), time.time()
    moments = [began_s, traffic_s, remapped.at_s, end_s]
    names = ("before the traffic", "traffic, before the remap", "traffic, after the remap")
    return RemapResult(
        busy=busy.name,
        traffic_mbit=rate,
        traffic_s=traffic_s - began_s,
        remap_s=remapped.at_s - began_s,
        moved=remapped.moved,
        vnodes_before=before.vnodes,
        vnodes_after=seen.tables()[-1].vnodes,
        phases=[
            _phase(name, start, stop, busy.name, loads, programs.reads)
            for name, start, stop in zip(names, moments, moments[1:], strict=False)
        ],
        loads=[load._replace(at_s=load.at_s - began_s) for load in loads],
    )


def _remap(seen: watch.Watch, above: int) -> watch.Table | None:
    """Return the first table after an epoch that traffic caused."""
    tables = (table for table in seen.tables() if table.epoch > above)
    return next((table for table in tables if table.reason == "overload"), None)


@dataclasses.dataclass
class _Follower:
    programs: Programs
    seen: watch.Watch
    began_s: float
    say: Say
    said_s: float = 0.0

    def follow(self, is_over: Callable[[], bool], deadline_s: float) -> None:
        """Report each host's load until a condition holds."""
        end_s = time.time() + deadline_s
        while not is_over():
            self.programs.check()
            if time.time() > end_s:
                raise errors.Unusable("the remap", f"nothing has moved after {deadline_s:.0f} s")
            if time.time() > self.said_s + SAY_EVERY_S:
                self.said_s = time.time()
                self.say(f"remap | {self.said_s - self.began_s:4.0f} s | {self._words()}")
            time.sleep(CHECK_INTERVAL_S)

    def _words(self) -> str:
        vnodes = self.seen.tables()[-1].vnodes
        last = {load.host: load for load in self.seen.loads(self.said_s - 10)}
        return "  ".join(
            f"{host}: {vnodes.get(host, 0)} v-nodes, traffic {load.others / MBIT:.0f}, "
            f"gives {load.given / MBIT:.0f} Mbit/s"
            for host, load in sorted(last.items())
        )


def _phase(
    name: str,
    start_s: float,
    stop_s: float,
    busy: str,
    loads: Sequence[watch.Load],
    reads: Sequence[Read],
) -> Phase:
    given = [load for load in loads if start_s < load.at_s <= stop_s]
    by_busy = sum(load.given for load in given if load.host == busy)
    took = [r.took_s for r in reads if start_s < r.at_s <= stop_s and r.host != busy]
    return Phase(
        name=name,
        seconds=round(stop_s - start_s, 2),
        given_share=by_busy / (sum(load.given for load in given) or 1.0),
        read_ms=1000 * statistics.fmean(took) if took else 0.0,
        reads=len(took),
    )
