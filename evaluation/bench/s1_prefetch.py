# SPDX-License-Identifier: Apache-2.0
"""S1P: read-ahead policies: none, sequential, or vNavigator's units.

Reads of one image from one source over one link, in virtual time.  The traces are the chunks that
the lab's image reads during its boot, as the builder records them, and the reads of the guests of
Ling 2015.  A chunk that a reader waits for has priority over read-ahead; the cache starts empty.

A chunk is a hit if it was cached or in flight at the first request for it.  Waste is the share of
fetched chunks that were read ahead and never read.
"""

import collections
import dataclasses
import itertools
import random
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple

import prettytable
from matplotlib import figure

from acstor_agent import settings
from acstor_agent.core.images import readahead
from acstor_common.model import geometry
from acstor_glance import sandbox
from acstor_glance.boot import boot_builder
from acstor_glance.boot import boot_guest
from acstor_policies import unit_readahead
from evaluation.bench import disk_simulation as simulation
from evaluation.bench import disk_workloads as workloads
from evaluation.bench import harness
from tests.lab import guest_image

LINK_BYTES_S = 100e6 / 8
ROUND_TRIP_S = 0.001
CHUNK = geometry.DEFAULT_CHUNK_BYTES
LIMIT_BYTES = settings.READ_AHEAD_LIMIT_BYTES
TOTAL = 128 * workloads.MIB
"""Bytes of a sequential application; random ones make requests in proportion."""
PREDICTORS: dict[str, Callable[[], readahead.Predictor]] = {
    "none": lambda: readahead.ReadAhead(0),
    "order": lambda: readahead.ReadAhead(LIMIT_BYTES),
    "units": lambda: unit_readahead.UnitReadahead(LIMIT_BYTES),
}
PACED = "boot"
READERS = ("SR-M", "SR-S", "RR")
MIXED = {"SR-M and RR": ("SR-M", "RR"), "SR-M and SR-S": ("SR-M", "SR-S"), "RR and RR": ("RR",) * 2}


class Read(NamedTuple):
    """A read of a guest, and its think time before."""

    think_s: float
    offset: int
    length: int


@dataclasses.dataclass
class Outcome:
    """The results of one trace."""

    chunks: int = 0
    hits: int = 0
    fetched: int = 0
    unread: int = 0
    waited_s: float = 0.0

    @property
    def hit_share(self) -> float:
        return self.hits / self.chunks

    @property
    def waste_share(self) -> float:
        return self.unread / self.fetched


class Link:
    """Transfers one chunk at a time; those with a waiting reader first."""

    def __init__(self) -> None:
        self.due_s: dict[int, float] = {}
        """Arrival times of chunks that are cached or in flight."""
        self._wishes: collections.OrderedDict[int, None] = collections.OrderedDict()
        self._free_s = 0.0

    def wish(self, chunk_no: int) -> None:
        """Queue a chunk for an idle link."""
        if chunk_no not in self.due_s:
            self._wishes.setdefault(chunk_no)

    def advance(self, now_s: float) -> None:
        """Start queued transfers, as far as there was time."""
        while self._wishes and self._free_s < now_s:
            self._bring(self._wishes.popitem(last=False)[0], self._free_s)
        self._free_s = max(self._free_s, now_s)

    def demand(self, chunk_no: int, now_s: float) -> None:
        """Transfer a chunk now."""
        self._wishes.pop(chunk_no, None)
        self._bring(chunk_no, max(now_s, self._free_s))

    def _bring(self, chunk_no: int, now_s: float) -> None:
        self._free_s = now_s + CHUNK / LINK_BYTES_S
        self.due_s[chunk_no] = self._free_s + ROUND_TRIP_S


def play(trace: Iterable[Read], predictor: readahead.Predictor) -> Outcome:
    """Replay a trace, each read after the response to the previous one."""
    link, outcome, read = Link(), Outcome(), set()
    now_s = 0.0
    for think_s, offset, length in trace:
        now_s += think_s
        link.advance(now_s)
        start, stop = predictor.predict_range(offset, length, now_s)
        wanted = chunks_of(offset, offset + length)
        for chunk_no in wanted:
            if chunk_no not in read:
                outcome.chunks += 1
                outcome.hits += chunk_no in link.due_s
            if chunk_no not in link.due_s:
                link.demand(chunk_no, now_s)
        for chunk_no in chunks_of(start, stop):
            link.wish(chunk_no)
        read.update(wanted)
        done_s = max([now_s, *(link.due_s[chunk_no] for chunk_no in wanted)])
        outcome.waited_s += done_s - now_s
        now_s = done_s
    outcome.fetched, outcome.unread = len(link.due_s), len(link.due_s.keys() - read)
    return outcome


def chunks_of(start: int, stop: int) -> range:
    """Return the numbers of the chunks of a range."""
    return range(start // CHUNK, -(-stop // CHUNK))


# Traces


def reads_of(parts: Sequence[str]) -> Iterator[Read]:
    """Return the reads of a guest's applications, interleaved."""
    journal = workloads.Journal(0)
    lanes = [
        _lane(application.steps)
        for at, part in enumerate(parts)
        for application in workloads.applications(part, at, workloads.FILES_AT[at], journal, TOTAL)
    ]
    return (read for turn in itertools.zip_longest(*lanes) for read in turn if read is not None)


def _lane(steps: Iterable[simulation.Think | list[simulation.Access]]) -> Iterator[Read]:
    think_s = 0.0
    for step in steps:
        if isinstance(step, simulation.Think):
            think_s = step.seconds
            continue
        for access in step:
            if not access.is_write:
                yield Read(think_s, access.offset, access.length)
                think_s = 0.0


def sort_and_queries() -> dict[str, Iterator[Read]]:
    """Return the reads of a sort's map, and of a query."""
    rng, start = random.Random(1), workloads.FILES_AT[0]
    return {
        "sort": _lane(workloads.sort_map(rng, start, workloads.Journal(0), 2)),
        "TPC-H": _lane(workloads.query(rng, start, 300)),
    }


def boot_reads(say: harness.Say) -> dict[str, list[Read]]:
    """Boot the lab's image and return its chunks in the order of first access.

    A recording has no times: the chunks are read once at full speed, and once evenly over the
    duration of the boot.
    """
    raw = guest_image.ensure(say).raw
    cut = geometry.Geometry(raw.stat().st_size, CHUNK)
    say("the builder boots the image")
    with raw.open("rb") as image:
        found = boot_builder.record_boot(
            image.fileno(),
            cut,
            boot_guest.GuestLimits(),
            boot_guest.Firmware.BIOS,
            boot_builder.DEFAULT_MARKER,
            sandbox.Sandbox.BUBBLEWRAP,
            lambda *_: None,
        )
    say(f"{len(found.trace)} chunks in {found.seconds_s:.0f} s, until {found.end.value}")
    paces = {"boot, no pause": 0.0, PACED: found.seconds_s / len(found.trace)}
    return {
        name: [Read(think_s, cut.chunk_offset(n), cut.chunk_length(n)) for n in found.trace]
        for name, think_s in paces.items()
    }


def traces(say: harness.Say) -> dict[str, list[Read]]:
    """Return all traces by name."""
    guests = {name: reads_of((name,)) for name in READERS}
    guests |= {name: reads_of(parts) for name, parts in MIXED.items()}
    guests |= sort_and_queries()
    return boot_reads(say) | {name: list(reads) for name, reads in guests.items()}


# Results


@harness.measures("S1P")
def run(say: harness.Say) -> harness.Result:
    """Replay all traces with all predictors."""
    found = {
        name: {way: play(trace, make()) for way, make in PREDICTORS.items()}
        for name, trace in traces(say).items()
    }
    say(table(found))
    boot = found[PACED]
    values = (
        boot["units"].hit_share / max(boot["order"].hit_share, 1e-9),
        boot["units"].waste_share / max(boot["order"].waste_share, 1e-9),
    )
    details = {
        name: {way: dataclasses.asdict(outcome) for way, outcome in ways.items()}
        for name, ways in found.items()
    }
    return harness.Result({"S1P": values}, details, lambda picture: draw(picture, found))


def table(found: dict[str, dict[str, Outcome]]) -> str:
    """Return hits, waste and the guests' wait time."""
    names = ["Reads", *(f"{way}: {what}" for way in PREDICTORS for what in ("hits", "waste", "s"))]
    made = prettytable.PrettyTable(names, align="r", float_format=".1")
    made.align["Reads"] = "l"
    for name, ways in found.items():
        cells = [(100 * o.hit_share, 100 * o.waste_share, o.waited_s) for o in ways.values()]
        made.add_row([name, *itertools.chain(*cells)])
    return f"\nHits and waste in %, seconds of waiting\n{made}"


def draw(picture: figure.Figure, found: dict[str, dict[str, Outcome]]) -> None:
    """Draw hits and waste."""
    picture.set_size_inches(12, 5)
    both = picture.subplots(1, 2)
    for axes, title in zip(both, ("hit_share", "waste_share"), strict=True):
        for at, way in enumerate(PREDICTORS):
            shares = [100 * getattr(ways[way], title) for ways in found.values()]
            axes.bar([n + at * 0.3 for n in range(len(found))], shares, width=0.3, label=way)
        axes.set(title=title.replace("_", " ") + ", %", ylim=(0, 100))
        axes.set_xticks(range(len(found)), list(found), rotation=40, ha="right")
        axes.legend()
