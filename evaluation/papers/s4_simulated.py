# SPDX-License-Identifier: Apache-2.0
"""Runs of the simulator as cases, and their stored results.

All is in virtual time with fixed seeds, so the outcome of a case is the same on every machine.
"""

import dataclasses
import functools
import statistics
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence

from matplotlib import figure

from acstor_simulator import paper_figures
from acstor_simulator import simulation
from evaluation.bench import harness
from evaluation.papers import experiment

MB = paper_figures.MB
COLLABORATIVE, ACSTOR, PRINTED = "collaborative", "acstor", "paper"
SECONDS = {
    "none": 1.0,
    "local": 5.0,
    COLLABORATIVE: 10.0,
    "acstor-still": 16.0,
    ACSTOR: 16.0,
    PRINTED: 11.0,
}
"""Duration in seconds of a run with 160 guests that read 976 chunks each."""
_READS = 160 * 976


def outcome(scenario: simulation.Scenario, policy: str, say: harness.Say) -> experiment.Outcome:
    """Run a scenario, and return the data for pages."""
    result = simulation.simulate(scenario, policy)
    found = {
        "boot_s": round(result.mean_boot_s, 3),
        "slowest_s": round(max(result.boot_s, default=0.0), 3),
        "unbooted": result.unbooted,
        "storage": result.storage_chunks,
        "peer": result.peer_chunks,
        "remaps": result.remaps,
        "true_cv": round(result.true_cv, 3),
        "cvs": [round(cv, 3) for cv in result.traffic_cv],
        "mb_s": round(result.throughput / MB, 2),
        "used": list(result.used),
        "storage_mb": round(result.storage_bytes / MB, 1),
        "uplink_mb": round(result.uplink_bytes / MB, 1),
    }
    if (later := result.later) is not None:
        found["later"] = {
            "boot_s": round(statistics.fmean(later.boot_s), 3),
            "storage": later.storage_chunks,
            "peer": later.peer_chunks,
            "busy_mb": round(later.busy_bytes / MB, 1),
            "busy_hosts": later.busy_hosts,
        }
    return found


def case(
    name: str, scenario: simulation.Scenario, policy: str, times: float = 1.0
) -> experiment.Case:
    """Return a run as a case.

    :param times: its duration over that of a run with as many reads on one switch
    """
    reads = scenario.guests * scenario.chunks
    about_s = times * SECONDS.get(policy, SECONDS[ACSTOR]) * reads / _READS
    run_it = functools.partial(outcome, scenario, policy)
    return experiment.Case(name, run_it, about_s, is_timed=False)


def name_of(one: paper_figures.Case) -> str:
    """Return the name of a figure's case."""
    return f"{one.panel}, {one.x:g}, {one.policy}"


def of_figure(number: str, wanted: Callable[[paper_figures.Case], bool]) -> list[experiment.Case]:
    """Return the wanted cases of a figure."""
    made = paper_figures.EXPERIMENTS[number].make_cases()
    return [case(name_of(one), one.scenario, one.policy) for one in made if wanted(one)]


def draw(
    number: str, picture: figure.Figure, outcomes: experiment.Outcomes, key: str = "boot_s"
) -> None:
    """Fill the picture of a figure from its outcomes."""
    fill(picture, number, paper_figures.EXPERIMENTS[number].make_cases(), outcomes, name_of, key)


def fill(
    picture: figure.FigureBase,
    number: str,
    cases: Iterable[paper_figures.Case],
    outcomes: experiment.Outcomes,
    name: Callable[[paper_figures.Case], str],
    key: str = "boot_s",
) -> None:
    """Fill a picture from cases that may have other names."""
    found = [(one, outcomes[name(one)]) for one in cases if name(one) in outcomes]
    points = [paper_figures.Point(one, kept[key], kept["cvs"]) for one, kept in found]
    if points:
        paper_figures.fill(picture, paper_figures.EXPERIMENTS[number], points)


def value(outcomes: experiment.Outcomes, name: str, key: str = "boot_s") -> float | None:
    """Return one number of a case; None if it was not run."""
    return float(outcomes[name][key]) if name in outcomes else None


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean; None if a value is missing, or there is none."""
    known = [one for one in values if one is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


Rows = Callable[[experiment.Outcomes], Sequence[experiment.Row | experiment.Absent]]


def complete(rows: Rows) -> Rows:
    """Remove the figures of rows that lack one of two operands: they were not run."""

    @functools.wraps(rows)
    def made(outcomes: experiment.Outcomes) -> list[experiment.Row | experiment.Absent]:
        return [_whole_or_none(row) for row in rows(outcomes)]

    return made


def _whole_or_none(row: experiment.Row | experiment.Absent) -> experiment.Row | experiment.Absent:
    if isinstance(row, experiment.Absent) or not row.baseline_name:
        return row
    if None not in (row.ours, row.baseline):
        return row
    return dataclasses.replace(row, ours=None, baseline=None, ratio=None)
