# SPDX-License-Identifier: Apache-2.0
"""S1 in real time: guests on a real agent whose disk is emulated."""

import functools
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from matplotlib import figure

from evaluation.bench import disk_lab
from evaluation.bench import disk_pictures
from evaluation.bench import harness
from evaluation.bench import s1_disk
from evaluation.papers import experiment
from evaluation.papers import s1_runs

FOUR = "four guests"
ABOUT_S = {FOUR: 75.0, "SRSR": 25.0, "SWSW": 25.0, "SRRR": 25.0, "SWRW": 25.0}
ALONE_SHARE = 2.0
"""Of each application's work if one guest is alone: it ends soon."""
QUICK_SHARE = 0.4
PAPER_FIRST = {
    "SRSR": ("Figure 5", 85 / 46),
    "SWSW": ("Table 3", 1.47),
    "SRRR": ("Table 3", 1.63),
    "SWRW": ("Table 3", 1.71),
}
"""Time of the first application with cfq over that with Pregather."""
PACE = (
    "a request and its answer pass FUSE and Python processes; where that takes as long as the "
    "seek to a pending request, waiting is not worthwhile, and the rule does not wait"
)
ONE_BY_ONE = (
    "the kernel passes one uncached write at a time to a file of FUSE, and both applications "
    "write to one disk: the second write does not reach the agent before the first one is "
    "answered, so no policy can choose between them"
)
WRITERS = ("SWSW", "SWRW")
Rows = list[experiment.Row | experiment.Absent]


def cases(scale: experiment.Scale) -> list[experiment.Case]:
    """Return a case for each scenario, in which all policies take turns."""
    if scale is experiment.Scale.QUICK:
        return [experiment.Case(FOUR, functools.partial(_run, FOUR, QUICK_SHARE), 40.0)]
    return [
        experiment.Case(
            name, functools.partial(_run, name, 1.0 if name == FOUR else ALONE_SHARE), about_s
        )
        for name, about_s in ABOUT_S.items()
    ]


def _run(name: str, share: float, say: harness.Say) -> experiment.Outcome:
    return disk_lab.run(name, share, say)


def rows(outcomes: experiment.Outcomes) -> Sequence[experiment.Row | experiment.Absent]:
    """Return bandwidth, seeks and waits of the scenarios with an outcome."""
    made: Rows = []
    for name in disk_lab.GUESTS:
        if name not in outcomes:
            continue
        found = outcomes[name]["policies"]
        made += _bandwidths(name, found)
        if name in PAPER_FIRST:
            made.append(_first(name, found))
        made += [_at_zero(name, found), *_waits(name, found)]
    return made


def _because(name: str) -> str:
    return ONE_BY_ONE if name in WRITERS else PACE


def _bandwidths(name: str, found: Mapping[str, dict[str, Any]]) -> Rows:
    made: Rows = []
    own = found["pregather"]["all_mb_s"]
    for other in ("cfq", "deadline", "none"):
        goal = s1_disk.PAPER_GAIN.get(other) if name == FOUR else None
        row = experiment.Row.over(
            "Figure 6(b)" if name == FOUR else "",
            f"{name}: bandwidth with pregather over {other}",
            f"{goal} times" if goal else "not measured",
            own,
            "MB/s",
            found[other]["all_mb_s"],
            other,
            goal=goal,
            because=_because(name),
        )
        made.append(row)
    return made


def _first(name: str, found: Mapping[str, dict[str, Any]]) -> experiment.Row:
    part, goal = PAPER_FIRST[name]
    own_s, cfq_s = (next(iter(found[p]["took_s"]["VM1"].values())) for p in ("pregather", "cfq"))
    return experiment.Row.speed_up(
        part,
        f"{name}: time of the first application with cfq over that with pregather",
        f"{goal:.2f} times",
        own_s,
        cfq_s,
        "cfq",
        goal=goal,
        because=_because(name),
    )


def _at_zero(name: str, found: Mapping[str, dict[str, Any]]) -> experiment.Row:
    own, cfq = (_zero_percent(found[policy]) for policy in ("pregather", "cfq"))
    paper = "75.78 % (cfq: 55.06 %)" if name == FOUR else "not measured"
    what = f"{name}: seeks at zero with pregather, counted by the emulated disk"
    return experiment.Row("Table 4" if name == FOUR else "", what, paper, own, "%", cfq, "cfq")


def _zero_percent(one: Mapping[str, Any]) -> float:
    return float(100 * one["seeks"]["zero"] / sum(one["seeks"].values()))


def _waits(name: str, found: Mapping[str, dict[str, Any]]) -> Rows:
    share = s1_runs.share_met([found["pregather"]["waits"]])
    if share is None:
        return []
    goal = None if name == FOUR else 90.6
    what = f"{name}: successful waits (of {share[1]:,})"
    paper = "90.6 %" if goal else "not measured"
    return [experiment.Row("5.1", what, paper, share[0], "%", goal=goal, because=_because(name))]


def pairs(outcomes: experiment.Outcomes) -> Mapping[str, Sequence[float]]:
    """Return the bandwidths of the first and the last turn, with the same policy.

    Only of four guests: first in, first out serves two lone readers in turn or in pairs, by chance.
    """
    return {
        name: (one["policies"]["none"]["all_mb_s"], one["again"]["all_mb_s"])
        for name, one in outcomes.items()
        if name == FOUR
    }


def draw(picture: figure.Figure, outcomes: experiment.Outcomes) -> None:
    """Draw bandwidths and seeks at zero."""
    bandwidths, seeks = picture.subplots(1, 2)
    values = {
        policy: {name: one["policies"][policy]["all_mb_s"] for name, one in outcomes.items()}
        for policy in disk_lab.POLICIES
    }
    disk_pictures.bars(bandwidths, "MB/s", values)
    shares = {
        policy: {name: _zero_percent(one["policies"][policy]) for name, one in outcomes.items()}
        for policy in disk_lab.POLICIES
    }
    disk_pictures.bars(seeks, "Seeks at zero, %", shares)


EXPERIMENT = experiment.Experiment(
    key="S1-real-time",
    title="In real time: real agents, mounts and reads on an emulated disk",
    paper_has="The same applications on real guests and a real disk (table 3, 4, figures 5, 6).",
    here="The guests of table 1 together, and four mixes of one guest, at small scale: 16 MiB "
    "sequentially (32 MiB where a guest is alone) or 160 random blocks for each application. "
    "Each guest is a process that uses a disk of its own through the agent's mount, uncached, "
    "as Nova configures it. The agent is the real one; its chunks and the guests' writes are "
    "on an emulated disk that delays each request by the time of the model, and counts its "
    "seeks itself. The policies take turns on one warm agent. All guests' disks began as one "
    "image, so they read within 160 MiB, and the distance between readers is short: there is "
    "less to gain than between disks of 12 GB.",
    cases=cases,
    rows=rows,
    draw=draw,
    pairs=pairs,
)
