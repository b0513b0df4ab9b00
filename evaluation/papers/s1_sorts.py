# SPDX-License-Identifier: Apache-2.0
"""S1, sorts and queries: figures 2 and 8 to 12."""

import functools
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from matplotlib import figure

from evaluation.bench import disk_pictures
from evaluation.bench import disk_workloads as workloads
from evaluation.bench import harness
from evaluation.bench import s1_disk
from evaluation.bench import s1_figures
from evaluation.papers import experiment
from evaluation.papers import s1_runs

OTHERS = s1_disk.POLICIES[1:]
BLOCKS = {experiment.Scale.WHOLE: s1_figures.SORT_BLOCKS, experiment.Scale.QUICK: 2}
QUERY_READS = {experiment.Scale.WHOLE: s1_figures.QUERY_READS, experiment.Scale.QUICK: 1000}
LEAST = (
    "a round of slices takes up to a second, and some seconds contain only the end of the "
    "queries' slice; the queries never wait much longer than a second for an answer"
)
Rows = list[experiment.Row | experiment.Absent]


def cases(scale: experiment.Scale, with_queries: bool) -> list[experiment.Case]:
    """Return a case for each policy."""
    queries = QUERY_READS[scale] if with_queries else 0
    make = functools.partial(workloads.sort_guests, BLOCKS[scale], queries)
    about_s = 6.0 if scale is experiment.Scale.WHOLE else 2.0
    return s1_runs.cases_of_policies(make, about_s, s1_figures.PAPER_IOPS)


# Figures 2, 8 and 9


def sort_rows(outcomes: experiment.Outcomes) -> Sequence[experiment.Row | experiment.Absent]:
    """Return time, bandwidth and seeks of four sorts."""
    found = s1_runs.by_policy(outcomes)
    if len(found) < len(s1_runs.POLICIES):
        return []
    own = found["pregather"]
    made: Rows = []
    for other, goal in s1_figures.PAPER_SORT_S.items():
        row = experiment.Row.speed_up(
            "Figure 8(a)",
            f"Time of the sort with {other} over that with pregather",
            f"{100 * (1 - 1 / goal):.0f} % less: {goal:.2f} times",
            own["s"],
            found[other]["s"],
            other,
            goal=goal,
            is_headline=other == "cfq",
        )
        made.append(row)
    for other in (*OTHERS, "none"):
        paper_gain = s1_figures.PAPER_SORT_MB_S.get(other)
        row = experiment.Row.over(
            "Figure 8(b)",
            f"Bandwidth with pregather over {other}",
            f"{paper_gain} times" if paper_gain else "not measured",
            own["all_mb_s"],
            "MB/s",
            found[other]["all_mb_s"],
            other,
            goal=paper_gain,
        )
        made.append(row)
    return [*made, *_zero_rows("Figure 9", found, None)]


def _zero_rows(part: str, found: Mapping[str, dict[str, Any]], goal: float | None) -> Rows:
    own = found["pregather"]["seeks_percent"][0]
    said = f"{goal:.0f} %, more than others" if goal else "drawn; much more than others"
    return [
        experiment.Row(
            part,
            "Seeks at zero with pregather",
            said,
            own,
            "%",
            found[other]["seeks_percent"][0],
            other,
            goal=goal if other == "cfq" else None,
        )
        for other in OTHERS
    ]


def draw_sort(picture: figure.Figure, outcomes: experiment.Outcomes) -> None:
    """Draw places over time, time and bandwidth, and seek distances."""
    found = s1_runs.by_policy(outcomes)
    places, bars, seeks = picture.subplots(1, 3, width_ratios=(1.2, 1, 1))
    for name, points in found["pregather"]["places"].items():
        places.plot(*zip(*points, strict=True), ".", markersize=2, label=name)
    places.set(title="pregather: places over time (figure 2)", xlabel="s", ylabel="GB")
    disk_pictures.bars(
        bars,
        "Sort (figure 8)",
        {p: {"s": one["s"], "MB/s": one["all_mb_s"]} for p, one in found.items()},
    )
    _draw_seeks(seeks, found, "figure 9")


def _draw_seeks(axes: Any, found: Mapping[str, dict[str, Any]], name: str) -> None:
    shares = [one["seeks_percent"][0] for one in found.values()]
    axes.bar(range(len(found)), shares)
    axes.set(title=f"Seeks at zero, % ({name})", ylim=(0, 100))
    axes.set_xticks(range(len(found)), list(found), rotation=20)


SORT = experiment.Experiment(
    key="S1-figures-8-9",
    title="Figures 2, 8 and 9: a sort in four guests",
    paper_has="Hadoop 0.20.2 sorts 6 GB on a virtual cluster of thirteen nodes on three machines; "
    "time and bandwidth of each machine, and seek distances.",
    here="One machine of the three, with four data guests of two maps each. A map reads blocks of "
    "64 MiB sequentially, in random order, computes, and writes as much: Hadoop itself, its "
    "shuffle and its logs are left out, so the disk has no other load, and waiting gains more "
    "than in the paper.",
    cases=functools.partial(cases, with_queries=False),
    rows=sort_rows,
    draw=draw_sort,
)


# Figures 10 and 11


def beside_rows(outcomes: experiment.Outcomes) -> Sequence[experiment.Row | experiment.Absent]:
    """Return the results of sorts beside queries."""
    found = s1_runs.by_policy(outcomes)
    if len(found) < len(s1_runs.POLICIES):
        return []
    made: Rows = []
    for name, goal in s1_figures.PAPER_BESIDE_S.items():
        own_s, cfq_s = (_end_s(found[policy], name) for policy in ("pregather", "cfq"))
        row = experiment.Row.speed_up(
            "Figure 10(a)",
            f"{name}: time with cfq over that with pregather",
            f"{100 * (1 - 1 / goal):.0f} % less: {goal:.2f} times",
            own_s,
            cfq_s,
            "cfq",
            goal=goal,
        )
        made.append(row)
    return [*made, *_zero_rows("Figure 10(b)", found, 65), *_requests(found)]


def _end_s(one: Mapping[str, Any], application: str) -> float:
    """Return the end of the last application of that name, in any guest."""
    return max(s for name, s in one["ends_s"].items() if name.endswith(f" {application}"))


def _requests(found: Mapping[str, dict[str, Any]]) -> Rows:
    made: Rows = []
    means = {p: _means(found[p]) for p in s1_figures.PAPER_IOPS}
    for at, what in enumerate(("a data guest", "the guest with queries")):
        (own, cfq), (paper, paper_cfq) = (
            [pair[at] for pair in table.values()] for table in (means, s1_figures.PAPER_IOPS)
        )
        row = experiment.Row.over(
            "Figure 11",
            f"Requests/s of {what} with pregather over cfq",
            f"about {paper} and {paper_cfq}: {paper / paper_cfq:.2f} times",
            own,
            "",
            cfq,
            "cfq",
            goal=paper / paper_cfq,
        )
        made.append(row)
    least = {p: found[p]["requests_s"]["TPCH"]["least"] for p in ("pregather", "cfq")}
    return [
        *made,
        experiment.Row(
            "Figure 11",
            "Slowest second of the guest with queries, requests",
            "kept at about 80",
            least["pregather"],
            "",
            least["cfq"],
            "cfq",
            goal=80,
            because=LEAST,
        ),
    ]


def _means(one: Mapping[str, Any]) -> tuple[float, float]:
    """Return the requests/s of a data guest, and of the one with queries."""
    rates = {name: rate["mean"] for name, rate in one["requests_s"].items()}
    queries = rates.pop("TPCH")
    return sum(rates.values()) / len(rates), queries


def draw_beside(picture: figure.Figure, outcomes: experiment.Outcomes) -> None:
    """Draw requests per second with pregather and cfq, and seeks."""
    found = s1_runs.by_policy(outcomes)
    *panels, seeks = picture.subplots(1, 3)
    for axes, policy in zip(panels, s1_figures.PAPER_IOPS, strict=True):
        for name, rate in found[policy]["series"].items():
            axes.plot(rate, linewidth=1, label=name)
        axes.set(title=f"{policy}: requests/s (figure 11)", xlabel="s", ylim=(0, None))
        axes.legend()
    _draw_seeks(seeks, found, "figure 10b")


BESIDE = experiment.Experiment(
    key="S1-figures-10-11",
    title="Figures 10 and 11: sorts beside a guest with a database",
    paper_has="A sort of 2 GB in four guests of two maps each, and a fifth guest with two queries "
    "of TPC-H (q6 and q19) on the same disk: seconds of each, seeks, and requests per second.",
    here="The same guests; the queries are modelled, too: pages of 8 KiB by an index, and for "
    "every fifth one a scan of 1 MiB. Their rate differs from that of the paper's database, "
    "so the rows on requests compare the effect of pregather, not the number of requests.",
    cases=functools.partial(cases, with_queries=True),
    rows=beside_rows,
    draw=draw_beside,
)


# Figure 12


def cost_cases(scale: experiment.Scale) -> list[experiment.Case]:
    """Return the one case."""
    return [experiment.Case("four guests", _cost, 12.0)]


def _cost(say: harness.Say) -> experiment.Outcome:
    memory_mib, cpu_us = s1_disk.cost()
    return {"memory_mib": round(memory_mib, 3), "cpu_us": round(cpu_us, 2)}


def cost_rows(outcomes: experiment.Outcomes) -> Sequence[experiment.Row | experiment.Absent]:
    """Return memory, and processor time for each request."""
    if (one := outcomes.get("four guests")) is None:
        return []
    return [
        experiment.Row(
            "Figure 12(a)",
            "Memory of pregather for four guests",
            "2,148 KiB more than cfq",
            1024 * one["memory_mib"],
            "KiB",
            goal=2148,
            better=experiment.Better.LESS,
            is_headline=True,
        ),
        experiment.Row(
            "Figure 12(b)",
            "Additional processor time per request over first in, first out",
            "20 % of the host's processors instead of 17 % with cfq",
            one["cpu_us"],
            "us",
        ),
        experiment.Row(
            "Figure 12(b)",
            "The same at 1,000 requests/s, as a share of one processor",
            "3 % more than cfq",
            one["cpu_us"] / 10,
            "%",
            goal=3,
            better=experiment.Better.LESS,
        ),
    ]


COST = experiment.Experiment(
    key="S1-figure-12",
    title="Figure 12: memory and processor time",
    paper_has="Free memory and processor use of the hypervisor with Pregather and with cfq.",
    here="Allocations of the policy's own code, and the processor time per request of a whole run "
    "over that of the same guests with first in, first out. It is Python in a process, not C "
    "in a kernel. 1,000 requests/s are more than four guests reach on the paper's disk.",
    cases=cost_cases,
    rows=cost_rows,
)
