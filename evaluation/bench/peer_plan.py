# SPDX-License-Identifier: Apache-2.0
"""The grid of PEERS, and which of its cells are measured first.

The grid has 30 cells.  The plan orders jobs by what they tell; those that do not fit into the time
limit are left out, and their cells are reported as not measured.
"""

import dataclasses
import enum
import itertools
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence

from evaluation.bench import peer_ways

LINKS_MBIT = (100, 1000, None)
ROUND_TRIPS_MS = (0, 5, 20, 100, 200)
HOSTS = (1, 8)
WHOLE_S, QUICK_S = 3 * 3600.0, 20 * 60.0
LATER_S = 600.0
FIRST_GUESS_S = 150.0


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of the grid.

    :param mbit: rate of each link; None: not shaped
    :param rtt_ms: round trip to the image server; hosts have none between them
    """

    mbit: int | None
    rtt_ms: int
    hosts: int = 1

    def __str__(self) -> str:
        rate = "no limit" if self.mbit is None else f"{self.mbit} Mbit/s"
        return f"{rate}, {self.rtt_ms} ms" + (f", {self.hosts} hosts" if self.hosts > 1 else "")


GRID = [Cell(*words) for words in itertools.product(LINKS_MBIT, ROUND_TRIPS_MS, HOSTS)]
CORE = (Cell(100, 0), Cell(100, 100))
NEXT = (Cell(1000, 5), Cell(None, 0), Cell(1000, 20), Cell(100, 200))
LAST = tuple(cell for cell in GRID if cell.hosts == 1 and cell not in (*CORE, *NEXT))
CROWDS = (Cell(1000, 20, 8), Cell(100, 0, 8), Cell(100, 100, 8))
KEPT = Cell(100, 100)


class Kind(enum.Enum):
    """What a job does on fresh hosts."""

    BOOT = "boot"
    KEEP = "boot and keep running"
    REPLAY = "replay the reads of a boot"


@dataclasses.dataclass(frozen=True)
class Job:
    """One measurement."""

    kind: Kind
    cell: Cell
    way: str
    turn: int = 0

    def __str__(self) -> str:
        return f"{self.kind.value}, {self.cell}, {self.way}, turn {self.turn + 1}"


def plan(turns: int, *, is_quick: bool) -> list[Job]:
    """Return all jobs in order; ways change their order from turn to turn."""
    if is_quick:
        near, far = CORE
        return [
            *_jobs(Kind.BOOT, [near], (peer_ways.RAW, "nbdkit", peer_ways.ACSTOR)),
            *_jobs(Kind.REPLAY, CROWDS[:1], ("nbdkit", peer_ways.ACSTOR)),
            *_jobs(Kind.BOOT, [far], (peer_ways.ACSTOR, "download", "nbdkit")),
        ]
    ways = tuple(peer_ways.WAYS)
    first = [
        *_jobs(Kind.BOOT, CORE[:1], ways),
        *_jobs(Kind.KEEP, [KEPT], ways),
        *_jobs(Kind.REPLAY, CROWDS[:-1], ways),
        *_jobs(Kind.BOOT, NEXT, ways),
    ]
    for turn in range(1, turns):
        first += _jobs(Kind.BOOT, CORE, ways, turn)
    first += _jobs(Kind.REPLAY, CROWDS[-1:], ways)
    for turn in range(1, turns):
        first += _jobs(Kind.BOOT, NEXT, ways, turn)
    return [*first, *_jobs(Kind.BOOT, LAST, ways)]


def _jobs(kind: Kind, cells: Sequence[Cell], ways: Sequence[str], turn: int = 0) -> Iterator[Job]:
    for cell in cells:
        for way in sorted(ways, key=ways.index, reverse=bool(turn % 2)):
            yield Job(kind, cell, way, turn)


class TimeLimit:
    """Says which jobs still fit: one may take as long as the longest like it so far.

    :param clock: in seconds
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._end_s = clock, clock() + limit_s
        self._longest_s: dict[tuple[Kind, int, str], float] = {}

    def has_time(self, job: Job) -> bool:
        """Return whether a job fits into the rest of the time."""
        guess_s = self._longest_s.get(self._like(job), FIRST_GUESS_S)
        return self._clock() + guess_s <= self._end_s

    def note(self, job: Job, took_s: float) -> None:
        """Note how long a job took."""
        like = self._like(job)
        self._longest_s[like] = max(took_s, self._longest_s.get(like, 0.0))

    @staticmethod
    def _like(job: Job) -> tuple[Kind, int, str]:
        return job.kind, job.cell.rtt_ms, job.way
