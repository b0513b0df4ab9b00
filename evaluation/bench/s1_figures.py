# SPDX-License-Identifier: Apache-2.0
"""S1F: figures 5 and 8 to 12 of Ling 2015, by the model, beside the paper's text.

Figures 1, 6 and 7 and tables 3 and 4 are S1's (s1_disk.py), as is the model.  The paper has no
numbers for its figures, so the comparison uses the text's shares and gains, not heights of bars.
"""

import statistics
from collections.abc import Mapping
from typing import NamedTuple

from matplotlib import figure

from acstor_agent.core.disk_scheduling import policy as policies
from acstor_agent.core.disk_scheduling import pregather
from acstor_policies import disk_schedulers
from evaluation.bench import disk_simulation as simulation
from evaluation.bench import disk_workloads as workloads
from evaluation.bench import harness
from evaluation.bench import s1_disk

ZONES = (10, 100, 1000, 2000, 10_000, 100_000, 1_000_000, 10_000_000)
"""Lengths of zones in sectors: figure 5."""
SWEEP_BYTES = workloads.FILE_BYTES // 4
LAYOUTS = {
    "side by side": (workloads.FILES_AT[0], workloads.FILES_AT[0] + 1032 * workloads.MIB),
    "4 GiB apart": workloads.FILES_AT,
}
"""Offsets of the two readers' files.

The second file is right behind the first one's 1 GB and 128 gaps, in one zone of 10^7 sectors; or,
as in all other runs, the files are on both sides of such a zone's border.
"""
SORT_BLOCKS, QUERY_READS = 4, 3000
OTHERS = s1_disk.POLICIES[1:]
PAPER_FIGURE_5 = {"2000 sectors": (46.0, 91.6), "10^7 sectors": (85.0, 71.2)}
"""Seconds, and percentage of seeks at zero, of two readers of 2 GB."""
PAPER_SORT_MB_S = {"cfq": 1.26, "anticipatory": 1.28, "deadline": 1.38}
PAPER_SORT_S = {"cfq": 1 / 0.82, "anticipatory": 1 / 0.80}
PAPER_BESIDE_S = {"sort": 1 / 0.80, "q6": 1 / 0.91, "q19": 1 / 0.96}
"""Seconds with cfq over those with pregather."""
PAPER_IOPS = {"pregather": (300, 80), "cfq": (200, 90)}
"""Mean requests/s of a data guest and of the one with queries: figure 11."""


class Point(NamedTuple):
    """Two sequential readers of one guest, with one zone length."""

    layout: str
    sectors: int
    seconds_s: float
    at_zero: float


@harness.measures("S1F")
def run(say: harness.Say) -> harness.Result:
    """Run the figures' scenarios."""
    sweep = [zones(layout, sectors) for layout in LAYOUTS for sectors in ZONES]
    without = {
        layout: two_readers(layout, disk_schedulers.SCHEDULERS["cfq"]()) for layout in LAYOUTS
    }
    sort, both = (
        {
            policy: s1_disk.play(
                lambda queries=queries: workloads.sort_guests(SORT_BLOCKS, queries), policy, say
            )
            for policy in s1_disk.POLICIES
        }
        for queries in (0, QUERY_READS)
    )
    memory_mib, cpu_us = s1_disk.cost()
    tables = (figure_5(sweep, without), figures_8_9(sort), figure_10(both), figure_11(both))
    for table in tables:
        say(table)
    say(
        f"Figure 12: {memory_mib:.2f} MiB (paper: less than 2.1 more than cfq), {cpu_us:.0f} us of "
        "processor time for each request (paper: 3 % more than cfq)"
    )
    own = s1_disk.bandwidth(sort["pregather"])
    values = tuple(own / s1_disk.bandwidth(sort[other]) for other in OTHERS)
    details = {
        "figure_5": [point._asdict() for point in sweep],
        "memory_mib": memory_mib,
        "cpu_us_per_request": cpu_us,
    }
    return harness.Result(
        {"S1F": values}, details, lambda picture: draw(picture, sweep, sort, both)
    )


def two_readers(layout: str, policy: policies.SchedulingPolicy) -> s1_disk.Run:
    """Run two sequential readers in one guest, alone."""
    guest = workloads.guest(
        "SRSR", ("SR-M", "SR-M"), workloads.REGIONS[0], 1, SWEEP_BYTES, LAYOUTS[layout]
    )
    return simulation.Simulation([guest], policy).run()


def zones(layout: str, sectors: int) -> Point:
    """Run them with zones of this length."""
    limits = pregather.PregatherParameters(zone_bytes=sectors * workloads.SECTOR)
    found = two_readers(layout, pregather.Pregather(limits))
    return Point(layout, sectors, found.now_s, s1_disk.at_zero(found))


def figure_5(sweep: list[Point], without: Mapping[str, s1_disk.Run]) -> str:
    """Return time and seeks at zero by zone length, and with cfq."""
    rows = []
    for sectors in ZONES:
        points = [point for point in sweep if point.sectors == sectors]
        rows.append(
            [sectors, *(x for point in points for x in (point.seconds_s, 100 * point.at_zero))]
        )
    cells = (x for found in without.values() for x in (found.now_s, 100 * s1_disk.at_zero(found)))
    rows.append(["cfq", *cells])
    said = "; ".join(f"{at}: {s:.0f} s, {zero} %" for at, (s, zero) in PAPER_FIGURE_5.items())
    names = [f"{layout}: {unit}" for layout in LAYOUTS for unit in ("s", "zero, %")]
    return s1_disk.table(f"Zones (figure 5; paper: {said})", ["Sectors", *names], rows)


def figures_8_9(sort: Mapping[str, s1_disk.Run]) -> str:
    """Return the results of four sorts, and their seeks."""
    own = sort["pregather"]
    rows = []
    for policy, found in sort.items():
        mb_s = s1_disk.bandwidth(found)
        gain = s1_disk.bandwidth(own) / mb_s
        slower, mb_s = found.now_s / own.now_s, s1_disk.bandwidth(found)
        gain, said = s1_disk.bandwidth(own) / mb_s, PAPER_SORT_MB_S.get(policy, "-")
        times = [policy, found.now_s, slower, PAPER_SORT_S.get(policy, "-")]
        rows.append([*times, mb_s, gain, said, *s1_disk.seek_shares(found)])
    names = ["Policy", "s", "over pg", "paper", "MB/s", "pg over it", "paper "]
    return s1_disk.table("Sort (figures 8, 9)", [*names, "zero, %", "to 12 GB", "farther"], rows)


def figure_10(both: Mapping[str, s1_disk.Run]) -> str:
    """Return the results of sorts beside queries."""
    own, cfq = (ends(both[policy]) for policy in ("pregather", "cfq"))
    rows = [
        [policy, *ends(found).values(), *s1_disk.seek_shares(found)]
        for policy, found in both.items()
    ]
    rows.append(["cfq over pg", *(cfq[name] / own[name] for name in own), "-", "-", "-"])
    rows.append(["paper", *PAPER_BESIDE_S.values(), 65, "-", "-"])
    names = ["Policy", *PAPER_BESIDE_S, "zero, %", "to 12 GB", "farther"]
    return s1_disk.table("Sort beside TPC-H: seconds, seeks (figure 10)", names, rows)


def ends(found: s1_disk.Run) -> dict[str, float]:
    """Return the end of the last application of each name."""
    applications = [a for guest in found.guests for a in guest.applications]
    return {
        name: max(a.ended_s or 0.0 for a in applications if a.name == name)
        for name in PAPER_BESIDE_S
    }


def figure_11(both: Mapping[str, s1_disk.Run]) -> str:
    """Return requests per second while all guests run."""
    rows = []
    for policy, (data, queries) in PAPER_IOPS.items():
        found = both[policy]
        until_s = min(guest.ended_s for guest in found.guests)
        rates = [simulation.requests_per_s(guest, until_s) for guest in found.guests]
        means = [statistics.mean(rate) for rate in rates]
        rows.append([policy, statistics.mean(means[:-1]), data, means[-1], min(rates[-1]), queries])
    names = ["Policy", "data guest", "paper", "TPC-H", "least second", "paper "]
    return s1_disk.table("Requests/s (figure 11)", names, rows)


def draw(
    picture: figure.Figure,
    sweep: list[Point],
    sort: Mapping[str, s1_disk.Run],
    both: Mapping[str, s1_disk.Run],
) -> None:
    """Draw the figures."""
    picture.set_size_inches(15, 9)
    grid = picture.subplots(2, 3)
    zones_axes = grid[0][0]
    for layout, line in zip(LAYOUTS, ("-", "--"), strict=True):
        points = [point for point in sweep if point.layout == layout]
        seconds, shares = ([p.seconds_s for p in points], [100 * p.at_zero for p in points])
        zones_axes.plot(ZONES, seconds, f"o{line}", color="tab:blue", label=f"s, {layout}")
        zones_axes.plot(ZONES, shares, f"s{line}", color="tab:orange", label=f"zero, %, {layout}")
    zones_axes.set(title="Zones (figure 5)", xscale="log", xlabel="sectors", ylim=(0, None))
    zones_axes.legend()
    bars = {
        "Sort, s (figure 8a)": [found.now_s for found in sort.values()],
        "Sort, MB/s (figure 8b)": [s1_disk.bandwidth(found) for found in sort.values()],
        "Seeks at zero, % (figures 9, 10b)": [100 * s1_disk.at_zero(f) for f in sort.values()],
    }
    for axes, (title, heights) in zip((*grid[0][1:], grid[1][0]), bars.items(), strict=True):
        axes.bar(range(len(sort)), heights, width=0.4, label="sort")
        axes.set(title=title, xticks=range(len(sort)), xticklabels=list(sort))
    beside = [100 * s1_disk.at_zero(found) for found in both.values()]
    grid[1][0].bar([n + 0.4 for n in range(len(both))], beside, width=0.4, label="and TPC-H")
    grid[1][0].legend()
    for axes, policy in zip(grid[1][1:], PAPER_IOPS, strict=True):
        for guest in both[policy].guests:
            until_s = min(s1_disk.SHOWN_S, guest.ended_s)
            axes.plot(simulation.requests_per_s(guest, until_s), label=guest.name)
        axes.set(title=f"{policy}: requests/s (figure 11)", xlabel="s", ylim=(0, None))
        axes.legend()
