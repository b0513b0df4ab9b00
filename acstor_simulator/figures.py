# SPDX-License-Identifier: Apache-2.0
"""The experiments behind S4's figures 6, 8, 10 and 11, and their pictures.

Each experiment is a list of cases (a scenario, a policy and where its point lies),
so that a run can say how far it is; each picture is drawn from what the cases gave.
"""

import dataclasses
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from matplotlib import axes as mpl_axes
from matplotlib import figure

from acstor_simulator import run
from acstor_simulator import topology

MB = 1e6
CVS = (0.4, 0.8, 1.2)
PAPER = ("none", "local", "collaborative", "acstor")
PATTERNS = ((1, 1), (8, 1), (8, 3), (1, 5), (8, 5), (32, 5))
"""Partners of a host, and the distance of the farthest of them."""
TREE_MEAN = 20 * MB
"""The paper does not say how busy its tree is.  Eight hosts share a link of 1 Gbit/s there: with
the cluster's 70 MB/s that link alone would have to carry twice what it can."""


class Case(NamedTuple):
    """One run of an experiment: its panel, and its place on the panel's axis."""

    panel: str
    x: float
    scenario: run.Scenario
    policy: str


class Point(NamedTuple):
    """What a case gave."""

    case: Case
    result: run.Result


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One figure: how to make its cases, and how to draw a panel."""

    title: str
    x_label: str
    make_cases: Callable[[], list[Case]]
    y_label: str = "mean boot, s"


def _figure_6() -> list[Case]:
    return [
        Case(f"mean {mean} MB/s", cv, run.Scenario(mean=mean * MB, cv=cv), policy)
        for mean in (40, 70, 100)
        for cv in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2)
        for policy in PAPER
    ]


def _figure_8() -> list[Case]:
    return [
        Case(f"CV {cv}", guests, run.Scenario(guests=guests, cv=cv), policy)
        for cv in CVS
        for guests in range(32, 193, 32)
        for policy in ("collaborative", "acstor")
    ]


def _figure_10() -> list[Case]:
    return [
        Case(f"CV {cv}", 0, run.Scenario(cv=cv), policy)
        for cv in CVS
        for policy in ("collaborative", "acstor")
    ]


def _figure_11() -> list[Case]:
    shape = topology.Shape(pods=2)
    return [
        Case(
            f"CV {cv}",
            number,
            run.Scenario(
                shape,
                shape.hosts,
                mean=TREE_MEAN,
                cv=cv,
                partners=partners,
                reach=reach,
                seed=number,
            ),
            policy,
        )
        for cv in CVS
        for number, (partners, reach) in enumerate(PATTERNS)
        for policy in PAPER
    ]


EXPERIMENTS = {
    6: Experiment("Boot time of 160 guests on 32 hosts under traffic", "traffic CV", _figure_6),
    8: Experiment("Boot time over the number of guests (70 MB/s)", "guests", _figure_8),
    10: Experiment(
        "How uneven all traffic is while guests boot", "s", _figure_10, "CV over the hosts"
    ),
    11: Experiment(
        "Boot time of 128 guests on 128 hosts of a tree",
        "pattern of traffic, from near to far",
        _figure_11,
    ),
}


def draw(number: int, points: Sequence[Point]) -> figure.Figure:
    """Return the picture of an experiment: a panel beside the other, a line for each policy."""
    experiment = EXPERIMENTS[number]
    picture = figure.Figure(figsize=(14, 4.5), layout="constrained")
    picture.suptitle(f"{experiment.title} (S4, figure {number})")
    names = list(dict.fromkeys(point.case.panel for point in points))
    panels = picture.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for panel, name in zip(panels, names, strict=True):
        _draw_panel(panel, [point for point in points if point.case.panel == name])
        panel.set(title=name, xlabel=experiment.x_label)
    panels[0].set(ylabel=experiment.y_label, ylim=(0, None))
    panels[0].legend()
    return picture


def _draw_panel(panel: mpl_axes.Axes, points: Sequence[Point]) -> None:
    for policy in dict.fromkeys(point.case.policy for point in points):
        mine = [point for point in points if point.case.policy == policy]
        if len(mine) == 1:  # one run: its course
            cvs = mine[0].result.traffic_cv
            panel.plot([run.COLLECTION_S * (n + 1) for n in range(len(cvs))], cvs, label=policy)
        else:
            xs = [point.case.x for point in mine]
            panel.plot(xs, [point.result.mean_boot_s for point in mine], "o-", label=policy)


def record(point: Point) -> dict[str, Any]:
    """Return a point as JSON takes it."""
    return {
        "panel": point.case.panel,
        "x": point.case.x,
        "scenario": dataclasses.asdict(point.case.scenario),
        "mean_boot_s": point.result.mean_boot_s,
        **dataclasses.asdict(point.result),
    }
