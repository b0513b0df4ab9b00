# SPDX-License-Identifier: Apache-2.0
"""S1: the effect of a guest's write-out, and the reason for writers without gain."""

import functools
from collections.abc import Sequence

from matplotlib import figure

from evaluation.bench import disk_simulation as simulation
from evaluation.bench import disk_workloads as workloads
from evaluation.bench import s1_disk
from evaluation.papers import experiment
from evaluation.papers import s1_runs

POLICIES = ("pregather", "cfq")
GUESTS = ("SWSW", "SWRW", "SRRW")
FOUR = "four guests"
AS_IT_WAS = "fsync each 100 blocks"
WRITINGS = {
    AS_IT_WAS: workloads.Writing(fsync_blocks=workloads.FSYNC_BLOCKS, group=workloads.FSYNC_BLOCKS),
    **{f"{piece} at a time": workloads.Writing(piece) for piece in (1, 4, 8, 16, 38)},
}
"""Write-out parameters, by name; 38 requests are 100 blocks."""
ASSUMED = f"{workloads.AS_SYSBENCH.piece} at a time"
QUICK = (AS_IT_WAS, ASSUMED, "38 at a time")


def cases(scale: experiment.Scale) -> list[experiment.Case]:
    """Return a case for each write-out, scenario and policy."""
    is_whole = scale is experiment.Scale.WHOLE
    total = workloads.FILE_BYTES // (4 if is_whole else 16)
    return [
        s1_runs.case(
            f"{way}: {scenario}: {policy}",
            functools.partial(_make, scenario, total, WRITINGS[way]),
            policy,
            1.2 if is_whole else 0.3,
            functools.partial(_summary, scenario),
        )
        for way in (WRITINGS if is_whole else QUICK)
        for scenario in (FOUR, *GUESTS)
        for policy in POLICIES
    ]


def _make(scenario: str, total: int, writing: workloads.Writing) -> list[simulation.Guest]:
    if scenario == FOUR:
        return workloads.four_guests(total, writing)
    return workloads.mixed_guest(scenario, total, writing)


def _summary(scenario: str, found: simulation.Simulation) -> experiment.Outcome:
    first_s = 0.0 if scenario == FOUR else s1_disk.end_of(found, scenario, 0)
    return {
        "all_mb_s": round(s1_disk.bandwidth(found), 3),
        "zero_percent": round(100 * s1_disk.at_zero(found), 2),
        "first_s": round(first_s, 3),
        "waits": found.scheduler.account.waits,
    }


def rows(outcomes: experiment.Outcomes) -> Sequence[experiment.Row | experiment.Absent]:
    """Return a sequential application's gain, and four guests' results, by write-out."""
    made: list[experiment.Row | experiment.Absent] = []
    for scenario in (*GUESTS, FOUR):
        for way in WRITINGS:
            own, cfq = (outcomes.get(f"{way}: {scenario}: {p}") for p in POLICIES)
            if own is not None and cfq is not None:
                made.append(_row(scenario, way, own, cfq))
    return made


def _row(
    scenario: str, way: str, own: experiment.Outcome, cfq: experiment.Outcome
) -> experiment.Row:
    mark = " (assumed elsewhere on this page)" if way == ASSUMED else ""
    if scenario == FOUR:
        ratio = own["all_mb_s"] / cfq["all_mb_s"]
        values = (own["all_mb_s"], "MB/s", cfq["all_mb_s"])
        part, what, said = "Figure 6(b)", "bandwidth with pregather over cfq", "1.5 times"
    else:
        ratio = cfq["first_s"] / own["first_s"]
        values = (own["first_s"], "s", cfq["first_s"])
        part, what = "Table 3", f"time of {workloads.MIXED[scenario][0]} with cfq over pregather"
        paper_s = s1_disk.PAPER_TABLE_3[scenario][0]
        said = f"{paper_s[1] / paper_s[0]:.2f} times"
    return experiment.Row(
        part, f"{scenario}, {way}{mark}: {what}", said, *values, "cfq", ratio=ratio
    )


def draw(picture: figure.Figure, outcomes: experiment.Outcomes) -> None:
    """Draw the gains over the write-outs, with the paper's."""
    axes = picture.subplots()
    ways = [way for way in WRITINGS if f"{way}: {FOUR}: cfq" in outcomes]
    found = rows(outcomes)
    for number, scenario in enumerate((*GUESTS, FOUR)):
        ratios = [
            row.ratio
            for row in found
            if isinstance(row, experiment.Row) and row.what.startswith(f"{scenario}, ")
        ]
        axes.plot(ways, ratios, "o-", color=f"C{number}", label=scenario)
        paper_s = s1_disk.PAPER_TABLE_3.get(scenario, ((1.0, s1_disk.PAPER_GAIN["cfq"], 0.0),))[0]
        axes.axhline(paper_s[1] / paper_s[0], color=f"C{number}", linestyle=":")
    axes.set(title="Gain over cfq; dotted: the paper's", ylabel="times", ylim=(0, None))
    axes.legend()


EXPERIMENT = experiment.Experiment(
    key="S1-writes",
    title="Effect of how writes arrive at the disk",
    paper_has="Sequential writers (SW-M) gain 1.47 to 1.71; the paper does not state the size of "
    "the requests that its guests' kernels (Linux 2.6.18, ext3) write.",
    here="If all writers called fsync after each 100 blocks and submitted all of them, 38 "
    "requests and more would wait for a ring of 32: there would never be anything to wait "
    "for, and all policies would be equal. sysbench's source (0.4, sb_fileio.c) differs: a "
    "sequential writer calls fsync only at its end; a random one calls it after 100 requests "
    "for one file after the other, from 16 threads. So a random writer has 16 blocks in "
    "flight, and a sequential one as many as its kernel sends, which is unknown. This is "
    "varied here, from 1 request of 44 KiB to 38. As long as the ring has space for the "
    "pieces of both applications, waiting gains; once they fill it, the next piece cannot "
    "enter, and waiting gains nothing. With one request at a time a writer gains nothing "
    "beside random writes either: after those, one request does not make its zone denser than "
    "the mean, and the policy does not wait for it. 8 is assumed elsewhere, because this "
    "value reproduces the paper's SWSW, so only the other rows are evidence. All at a quarter "
    "of the paper's size, where gains are slightly smaller than at full size.",
    cases=cases,
    rows=rows,
    draw=draw,
)
