# SPDX-License-Identifier: Apache-2.0
"""Experiments of Wu 2017 as lists of cases: figures 1b and 6 to 11, and table 1."""

import dataclasses
import itertools
import operator
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import Literal
from typing import NamedTuple

from matplotlib import axes as mpl_axes
from matplotlib import figure

from acstor_simulator import simulation
from acstor_simulator.model import topology
from acstor_simulator.model import workloads

MB = 1e6
CVS = (0.4, 0.8, 1.2)
PAPER = ("none", "local", "collaborative", "acstor")
PATTERNS = ((1, 1), (8, 1), (8, 3), (1, 5), (8, 5), (32, 5))
"""Partners of a host, and the distance of the farthest."""
WORK_CHUNKS = 480  # chunks that a guest reads in figure 9
TREE_MEAN = 20 * MB
"""Mean traffic on the tree, which the paper does not give.

The cluster's 70 MB/s would exceed the link of 1 Gbit/s that eight hosts share there.
"""


class Case(NamedTuple):
    """One run of an experiment: its panel, and its position on the x axis."""

    panel: str
    x: float
    scenario: simulation.Scenario
    policy: str


class Point(NamedTuple):
    """Result of a case."""

    case: Case
    value: float  # shown in the panel
    course: Sequence[float] = ()  # values over the collections


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One figure: its cases, and what its panels show."""

    title: str
    x_label: str
    make_cases: Callable[[], list[Case]]
    y_label: str = "mean boot, s"
    value: Callable[[simulation.Result], float] = operator.attrgetter("mean_boot_s")
    is_course: bool = False  # a panel shows the CVs of the collections
    columns: int = 3  # panels in a row
    shares_scale: bool = True  # panels share the scale


def _figure_1() -> list[Case]:
    return [Case(f"CV {cv}", 0, simulation.Scenario(cv=cv), "collaborative") for cv in CVS]


def _figure_6() -> list[Case]:
    return [
        Case(f"mean {mean} MB/s", cv, simulation.Scenario(mean=mean * MB, cv=cv), policy)
        for mean in (40, 70, 100)
        for cv in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2)
        for policy in PAPER
    ]


def _figure_7() -> list[Case]:
    return [
        Case(f"CV {cv}", mean, simulation.Scenario(mean=mean * MB, cv=cv), policy)
        for cv in CVS
        for mean in (0, 20, 40, 70, 100)
        for policy in PAPER
    ]


def _figure_8() -> list[Case]:
    return [
        Case(f"CV {cv}", guests, simulation.Scenario(guests=guests, cv=cv), policy)
        for cv in CVS
        for guests in range(32, 193, 32)
        for policy in ("collaborative", "acstor")
    ]


def _figure_9() -> list[Case]:
    return [
        Case(
            workload,
            number,
            simulation.Scenario(
                mean=mean * MB, cv=cv, workload=workload, chunks=WORK_CHUNKS, common=0.0
            ),
            policy,
        )
        for workload in workloads.WORKLOADS
        for number, (mean, cv) in enumerate(itertools.product((40, 70, 100), CVS))
        for policy in PAPER
    ]


def _figure_10() -> list[Case]:
    return [
        Case(f"CV {cv}", 0, simulation.Scenario(cv=cv), policy)
        for cv in CVS
        for policy in ("collaborative", "acstor")
    ]


def _figure_11() -> list[Case]:
    shape = topology.Shape(pods=2)
    return [
        Case(
            f"CV {cv}",
            number,
            simulation.Scenario(
                shape,
                shape.host_count,
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


def _table_1() -> list[Case]:
    return [
        Case(f"mean {mean} MB/s, CV {cv}", factor, scenario, "paper")
        for mean, cv in ((20, 0.8), (70, 1.2))
        for factor in (1, 1.40, 1.67, 1.80, 2.20, 2.60, 3)
        for scenario in [simulation.Scenario(mean=mean * MB, cv=cv, factor=factor)]
    ]


EXPERIMENTS = {
    "1": Experiment(
        "CV of all traffic while guests boot",
        "s",
        _figure_1,
        "CV over the hosts",
        is_course=True,
    ),
    "6": Experiment("Boot time of 160 guests on 32 hosts under traffic", "traffic CV", _figure_6),
    "7": Experiment("Boot time of 160 guests over the traffic", "mean traffic, MB/s", _figure_7),
    "8": Experiment("Boot time over the number of guests (70 MB/s)", "guests", _figure_8),
    "9": Experiment(
        "Throughput of 160 guests",
        "traffic: 40, 70, 100 MB/s, at CV 0.4, 0.8, 1.2 each",
        _figure_9,
        "MB/s, all guests",
        lambda result: result.throughput / MB,
        shares_scale=False,
    ),
    "10": Experiment(
        "CV of all traffic while guests boot, by policy",
        "s",
        _figure_10,
        "CV over the hosts",
        is_course=True,
    ),
    "11": Experiment(
        "Boot time of 128 guests on 128 hosts of a tree",
        "pattern of traffic, from near to far",
        _figure_11,
    ),
    "table-1": Experiment("Boot time over lambda of Equation 1", "lambda", _table_1, columns=2),
}


def point(number: str, case: Case, result: simulation.Result) -> Point:
    """Return the point of a case."""
    return Point(case, EXPERIMENTS[number].value(result), result.traffic_cv)


def draw(number: str, points: Sequence[Point]) -> figure.Figure:
    """Return the figure of an experiment, with a line for each policy."""
    picture = figure.Figure(layout="constrained")
    what = f"table {number[-1]}" if number.startswith("table") else f"figure {number}"
    picture.suptitle(f"{EXPERIMENTS[number].title} (S4, {what})")
    fill(picture, EXPERIMENTS[number], points)
    return picture


def fill(picture: figure.FigureBase, experiment: Experiment, points: Sequence[Point]) -> None:
    """Draw the panels of an experiment."""
    names = list(dict.fromkeys(point.case.panel for point in points))
    rows, columns = -(-len(names) // experiment.columns), min(len(names), experiment.columns)
    if isinstance(picture, figure.Figure):
        picture.set_size_inches(14, 4.5 * rows)
    shared: Literal["row", "none"] = "row" if experiment.shares_scale else "none"
    panels = picture.subplots(rows, columns, sharey=shared, squeeze=False)
    for panel, name in zip(panels.flat, names, strict=False):
        mine = [point for point in points if point.case.panel == name]
        _draw_panel(panel, mine, experiment.is_course)
        panel.set(title=name, xlabel=experiment.x_label, ylim=(0, None))
    for panel in panels[:, 0]:
        panel.set(ylabel=experiment.y_label)
    panels[0, 0].legend()


def _draw_panel(panel: mpl_axes.Axes, points: Sequence[Point], is_course: bool) -> None:
    for policy in dict.fromkeys(point.case.policy for point in points):
        mine = [point for point in points if point.case.policy == policy]
        if is_course:
            cvs = mine[0].course
            panel.plot(
                [simulation.COLLECTION_S * (n + 1) for n in range(len(cvs))], cvs, label=policy
            )
        else:
            xs = [point.case.x for point in mine]
            panel.plot(xs, [point.value for point in mine], "o-", label=policy)


def record(case: Case, result: simulation.Result) -> dict[str, Any]:
    """Return a case and its result as JSON data."""
    return {
        "panel": case.panel,
        "x": case.x,
        "scenario": dataclasses.asdict(case.scenario),
        "mean_boot_s": result.mean_boot_s,
        **dataclasses.asdict(result),
    }
