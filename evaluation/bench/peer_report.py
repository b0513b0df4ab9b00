# SPDX-License-Identifier: Apache-2.0
"""The tables of PEERS, and its goals.

The machine is faster at some times than at others, so a ratio is the median over turns: each
compares acstor with another way in one turn.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import TypeVar

import prettytable
from matplotlib import figure

from evaluation.bench import peer_boots
from evaluation.bench import peer_plan
from evaluation.bench import peer_replay
from evaluation.bench import peer_ways

Measured = TypeVar("Measured")

LIMIT = 1.05
Points = dict[str, Callable[[peer_boots.Boot], float]]
STEPS: Points = {
    "login": lambda boot: boot.login_s,
    "service": lambda boot: boot.service_s,
    "program": lambda boot: boot.program_s,
}
POINTS: Points = {**STEPS, "program": lambda boot: boot.done_s}
"""Seconds from the request for the image."""

Turns = dict[int, Measured]
Boots = dict[tuple[peer_plan.Cell, str], Turns[peer_boots.Boot]]
Replays = dict[tuple[peer_plan.Cell, str], Turns[peer_replay.Replay]]


@dataclasses.dataclass
class Found:
    """All measurements, their commits, and the jobs that failed, with their reasons."""

    boots: Boots = dataclasses.field(default_factory=dict)
    replays: Replays = dataclasses.field(default_factory=dict)
    failed: list[str] = dataclasses.field(default_factory=list)
    commits: set[str] = dataclasses.field(default_factory=set)

    def add(self, job: peer_plan.Job, measured: peer_boots.Boot | peer_replay.Replay) -> None:
        """Add the measurement of a job."""
        if isinstance(measured, peer_replay.Replay):
            self.replays.setdefault((job.cell, job.way), {})[job.turn] = measured
        else:
            self.boots.setdefault((job.cell, job.way), {})[job.turn] = measured

    def as_details(self) -> dict[str, Any]:
        """Return all for JSON."""
        return {
            "commits": sorted(self.commits),
            "failed": self.failed,
            "boots": _as_rows(self.boots),
            "replays": _as_rows(self.replays),
        }


def _as_rows(measured: Mapping[tuple[peer_plan.Cell, str], Turns[Any]]) -> dict[str, Any]:
    return {
        f"{cell}, {way}": [{"turn": turn, **dataclasses.asdict(one)} for turn, one in these.items()]
        for (cell, way), these in measured.items()
    }


def percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the 50th, 90th and 99th percentile, interpolated.

    >>> percentiles([3.0])
    (3.0, 3.0, 3.0)
    """
    if len(values) == 1:
        return values[0], values[0], values[0]
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return cuts[49], cuts[89], cuts[98]


def _spread(values: Iterable[float | None], form: str = ".1f") -> str:
    """Return the percentiles in words; of one value, the value."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return format(known[0], form) if known else "-"
    return " / ".join(format(cut, form) for cut in percentiles(known))


def _median_mb(values: Iterable[int | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known) / 1e6:.0f}" if known else "-"


def boot_table(boots: Boots) -> str:
    """Return the table of one host; percentiles 50, 90 and 99 where there are several runs."""
    columns: dict[str, Callable[[list[peer_boots.Boot]], object]] = {
        "runs": len,
        "login, s": lambda these: _spread(boot.login_s for boot in these),
        "service, s": lambda these: _spread(boot.service_s for boot in these),
        "program, s": lambda these: _spread(boot.program_s for boot in these),
        "link MB: login": lambda these: _median_mb(boot.login_bytes for boot in these),
        "program": lambda these: _median_mb(boot.program_bytes for boot in these),
        "source MB": lambda these: _median_mb(boot.source_bytes for boot in these),
        "CPU s": lambda these: _spread(boot.cpu_s for boot in these),
        "MiB": lambda these: _spread((boot.memory_mib for boot in these), ".0f"),
    }
    return _table(boots, columns)


def later_table(boots: Boots) -> str:
    """Return the table of the guests that kept running."""
    kept = {
        key: of_later
        for key, these in boots.items()
        if (of_later := {turn: boot for turn, boot in these.items() if boot.later_s is not None})
    }
    later = f"{peer_plan.LATER_S / 60:g} min later"
    columns: dict[str, Callable[[list[peer_boots.Boot]], object]] = {
        "program, s": lambda these: _spread(boot.program_s for boot in these),
        later: lambda these: _spread(boot.later_s for boot in these),
        "link MB then": lambda these: _median_mb(boot.later_bytes for boot in these),
        "fully cached, s": lambda these: _spread((boot.cached_s for boot in these), ".0f"),
        "link MB": lambda these: _median_mb(boot.cached_bytes for boot in these),
    }
    return _table(kept, columns)


def replay_table(replays: Replays) -> str:
    """Return the table of several hosts, with the percentiles over hosts and runs."""
    columns: dict[str, Callable[[list[peer_replay.Replay]], object]] = {
        "runs": len,
        "reads done, s": lambda these: _spread(second for one in these for second in one.host_s),
        "link MB": lambda these: _median_mb(one.link_bytes for one in these),
        "source MB": lambda these: _median_mb(one.source_bytes for one in these),
        "CPU s/GB read": lambda these: _spread(1e9 * one.cpu_s / one.read_bytes for one in these),
        "MiB": lambda these: _spread((one.memory_mib for one in these), ".0f"),
    }
    return _table(replays, columns)


def _table(
    measured: Mapping[tuple[peer_plan.Cell, str], Turns[Measured]],
    columns: Mapping[str, Callable[[list[Measured]], object]],
) -> str:
    table = prettytable.PrettyTable(["cell", "way", *columns], align="l")
    for (cell, way), these in sorted(measured.items(), key=_order):
        every = list(these.values())
        table.add_row([cell, way, *(of_every(every) for of_every in columns.values())])
    return table.get_string()


def _order(item: tuple[tuple[peer_plan.Cell, str], object]) -> tuple[float, ...]:
    (cell, way), _ = item
    return cell.hosts, cell.mbit or 1e6, cell.rtt_ms, list(peer_ways.WAYS).index(way)


def not_measured(found: Found) -> Iterator[str]:
    """Yield the cells without a measurement of some or all ways, and what failed."""
    empty = []
    for cell in peer_plan.GRID:
        measured = found.boots if cell.hosts == 1 else found.replays
        absent = [way for way in peer_ways.WAYS if (cell, way) not in measured]
        if len(absent) == len(peer_ways.WAYS):
            empty.append(str(cell))
        elif absent:
            yield f"not measured: {cell}: {', '.join(absent)}"
    if empty:
        yield f"not measured in any way: {'; '.join(empty)}"
    yield from (f"failed: {line}" for line in found.failed)


class Ratio(NamedTuple):
    """acstor's time at a point of the grid over that of the other way with the largest ratio."""

    where: str
    ratio: float
    other: str


def point_ratios(found: Found, others: Sequence[str], points: Points) -> Iterator[Ratio]:
    """Yield the ratios of all cells that have acstor and one of the others in a turn."""
    for cell in peer_plan.GRID:
        for name, of_boot in points.items():
            yield from _ratio(f"{cell}: {name}", found.boots, cell, others, of_boot)


def replay_ratios(found: Found, others: Sequence[str]) -> Iterator[Ratio]:
    """Yield the ratios of the slowest hosts."""
    for cell in peer_plan.GRID:
        where = f"{cell}: reads done"
        yield from _ratio(where, found.replays, cell, others, lambda one: one.done_s)


def _ratio(
    where: str,
    measured: Mapping[tuple[peer_plan.Cell, str], Turns[Measured]],
    cell: peer_plan.Cell,
    others: Sequence[str],
    seconds: Callable[[Measured], float],
) -> Iterator[Ratio]:
    ours, ratios = measured.get((cell, peer_ways.ACSTOR), {}), {}
    for way in others:
        theirs = measured.get((cell, way), {})
        of_turns = [seconds(ours[turn]) / seconds(theirs[turn]) for turn in ours if turn in theirs]
        if of_turns:
            ratios[way] = statistics.median(of_turns)
    if ratios:
        other = max(ratios, key=ratios.__getitem__)
        yield Ratio(where, ratios[other], other)


def over_peers(found: Found) -> tuple[float, ...]:
    """Return the largest ratio of each step to that of another way, over cells of one host."""
    peers = [way for way in peer_ways.WAYS if way not in (peer_ways.RAW, peer_ways.ACSTOR)]
    return tuple(
        max((one.ratio for one in point_ratios(found, peers, {name: step})), default=math.nan)
        for name, step in STEPS.items()
    )


def direct_ratios(found: Found) -> list[Ratio]:
    """Return the ratios to direct reads at every point: goal "never more than 5 % slower"."""
    direct = peer_ways.DIRECT
    return [*point_ratios(found, direct, POINTS), *replay_ratios(found, direct)]


def goal_lines(ratios: Sequence[Ratio]) -> Iterator[str]:
    """Yield the goal's verdict, and each point that misses it."""
    missed = [one for one in ratios if one.ratio > LIMIT]
    yield (
        f"goal: never more than 5 % slower than reading the source directly: "
        f"met at {len(ratios) - len(missed)} of {len(ratios)} measured points"
    )
    for one in sorted(missed, key=lambda one: -one.ratio):
        yield f"goal missed: {one.where}: {one.ratio:.2f} times {one.other}"


def draw(picture: figure.Figure, found: Found) -> None:
    """Draw the medians of each way over the round trip at 100 Mbit/s."""
    for axes, (name, step) in zip(picture.subplots(1, len(STEPS)), STEPS.items(), strict=True):
        for way in peer_ways.WAYS:
            medians = {
                cell.rtt_ms: statistics.median(map(step, these.values()))
                for (cell, its_way), these in sorted(found.boots.items(), key=_order)
                if its_way == way and cell.mbit == peer_plan.LINKS_MBIT[0]
            }
            axes.plot(list(medians), list(medians.values()), "o-", label=way)
        axes.set(title=name, xlabel="round trip, ms", ylabel="s", ylim=(0, None))
    picture.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(peer_ways.WAYS)
    )
