# SPDX-License-Identifier: Apache-2.0
"""Rows of S4's page from small handmade outcomes, and from none."""

import pickle

import pytest

from acstor_simulator import paper_figures
from evaluation.papers import experiment
from evaluation.papers import s4
from evaluation.papers import s4_boots
from evaluation.papers import s4_cache
from evaluation.papers import s4_lambda
from evaluation.papers import s4_overhead
from evaluation.papers import s4_throughput
from evaluation.papers import s4_traffic
from evaluation.papers import s4_tree

Verdict = experiment.Verdict
SILENT = pytest.mark.parametrize("one", s4.PAPER.experiments, ids=lambda one: one.key)


def boot(boot_s: float, **more: object) -> experiment.Outcome:
    return {"boot_s": boot_s, "cvs": [1.0] * 8, "remaps": 0, "storage_mb": 1.0, **more}


def find(rows: object, *words: str) -> experiment.Row:
    [found] = [row for row in rows if all(word in row.what for word in words)]  # type: ignore
    return found


@SILENT
def test_rows_accept_no_outcomes(one: experiment.Experiment) -> None:
    assert all(isinstance(row, experiment.Absent) or row.compared is None for row in one.rows({}))


@SILENT
@pytest.mark.parametrize("scale", experiment.Scale)
def test_cases_have_unique_names(one: experiment.Experiment, scale: experiment.Scale) -> None:
    names = [case.name for case in one.cases(scale)]
    assert len(names) == len(set(names))
    quick = {case.name for case in one.cases(experiment.Scale.QUICK)}
    assert quick <= {case.name for case in one.cases(experiment.Scale.WHOLE)}


@SILENT
def test_cases_in_virtual_time_can_run_in_other_processes(one: experiment.Experiment) -> None:
    for case in one.cases(experiment.Scale.WHOLE):
        assert case.is_timed or pickle.loads(pickle.dumps(case.run)) is not None


def at(mean: int, cv: float, times_s: dict[str, float]) -> experiment.Outcomes:
    return {f"{mean} MB/s, CV {cv:g}, {policy}": boot(s) for policy, s in times_s.items()}


def test_gain_is_compared_with_the_bound_of_the_same_run() -> None:
    outcomes = {
        **at(40, 0.4, {"none": 80, "local": 40, "collaborative": 20, "acstor": 20}),
        **at(70, 1.2, {"none": 82, "local": 41, "collaborative": 32, "acstor": 20, "bound": 16}),
    }
    rows = s4_boots.GRID.rows(outcomes)
    most = find(rows, "where it gains most")
    assert (most.ratio, most.verdict) == (20 / 32, Verdict.MISSED)
    assert "33%" in most.because  # (20 - 14) / (32 - 14): the guests' wait
    assert find(rows, "where it gains least").ratio == 1.0
    gain = find(rows, "of boots over collaborative")
    assert (gain.ratio, gain.verdict) == (1.6, Verdict.MISSED)
    assert "2.00" in gain.because
    assert find(rows, "bound: the time of each host").ratio == 1.25
    assert find(rows, "local caches as a share").verdict is Verdict.REACHED
    assert find(rows, "boot time of none under").ratio == 82 / 80


def test_slopes_are_computed_from_the_fewest_to_the_most_guests() -> None:
    outcomes = {
        f"CV 1.2, {guests}, {policy}": boot(s)
        for guests, policy, s in (
            (32, "acstor", 20.0),
            (192, "acstor", 21.0),
            (32, "collaborative", 22.0),
            (192, "collaborative", 32.0),
        )
    }
    rows = s4_boots.NUMBERS.rows(outcomes)
    assert find(rows, "CV 1.2").ratio == pytest.approx(0.1)
    assert find(rows, "CV 0.4").ours is None


def test_lambda_matters_only_if_vnodes_move() -> None:
    outcomes = {
        f"mean 70 MB/s, CV 1.2, {factor:g}, paper": boot(s, remaps=1)
        for factor, s in ((1, 20.0), (3, 22.0))
    }
    rows = s4_lambda.FACTOR.rows(outcomes)
    moved, still = find(rows, "70 MB/s"), find(rows, "20 MB/s")
    assert (moved.ratio, still.ours) == (1.1, None)
    assert "no v-node moves" not in moved.what


def test_throughput_is_compared_under_uneven_traffic() -> None:
    outcomes = {
        f"{workload}, {x}, {policy}": {"mb_s": mb_s}
        for workload, x, policy, mb_s in (
            ("web server", 5, "acstor", 1800.0),
            ("web server", 5, "collaborative", 360.0),
            ("web proxy", 5, "acstor", 140.0),
            ("web proxy", 5, "collaborative", 70.0),
            ("video server", 0, "acstor", 6000.0),
            ("video server", 5, "acstor", 3000.0),
        )
    }
    rows = s4_throughput.THROUGHPUT.rows(outcomes)
    assert find(rows, "web server", "throughput of all").ratio == 5.0
    assert find(rows, "with the proxy").ratio == 2.5
    assert find(rows, "video server, acstor").verdict is Verdict.MISSED
    assert find(rows, "video server, collaborative").ours is None


def test_missing_baseline_gives_no_figure() -> None:
    rows = s4_throughput.THROUGHPUT.rows({"web server, 5, acstor": {"mb_s": 1800.0}})
    assert all(row.compared is None and row.verdict is Verdict.SHOWN for row in rows)  # type: ignore


def test_order_of_figure_11_accepts_ties() -> None:
    good = {"none": 65.0, "local": 60.0, "collaborative": 20.0, "acstor": 20.01}
    wrong = {"none": 60.0, "local": 65.0, "collaborative": 30.0, "acstor": 20.0}
    outcomes = {
        f"CV 1.2, {x}, {policy}": boot(s)
        for x, times_s in enumerate((good, wrong))
        for policy, s in times_s.items()
    }
    rows = s4_tree.FIGURE_11.rows(outcomes)
    order = find(rows, "paper's order")
    assert (order.ours, order.verdict) == (0.5, Verdict.MISSED)
    assert "CV 1.2, 1" in order.because
    assert find(rows, "fastest of the four").ours == 1.0


def test_cv_covers_the_first_20_seconds_of_booting() -> None:
    before, after = [0.4] * 3, [9.0]
    outcomes = {
        "CV 1.2, 0, acstor": {"cvs": [*before, 0.5, 0.5, 0.5, 0.5, *after]},
        "CV 1.2, 0, collaborative": {"cvs": [*before, 1.0, 1.0, 1.0, 1.4, *after]},
    }
    rows = s4_traffic.CVS.rows(outcomes)
    assert find(rows, "all traffic", "CV 1.2").ratio == pytest.approx(0.5 / 1.1)
    assert find(rows, "over that before", "CV 1.2").ratio == pytest.approx(1.1 / 0.4)
    assert find(rows, "largest range").ours == 0.0


def test_misses_are_repeated_reads_of_the_storage() -> None:
    still = {"boot_s": 15.0, "storage": 20, "peer": 940, "busy_mb": 160.0, "busy_hosts": 5}
    moved = {"boot_s": 14.0, "storage": 50, "peer": 950, "busy_mb": 16.0, "busy_hosts": 5}
    outcomes = {"acstor": {"later": moved}, "acstor-still": {"later": still}}
    rows = s4_overhead.REMAPS.rows(outcomes)
    assert find(rows, "acstor: misses").ours == 0.04
    given = find(rows, "acstor: chunks")
    assert (given.ours, given.baseline) == (50, 20)
    assert find(rows, "acstor: data sent").ratio == 0.1


def test_tables_and_pictures_of_pairs_are_measured() -> None:
    outcomes = {
        case.name: case.run(print) for case in s4_overhead.TABLES.cases(experiment.Scale.QUICK)
    }
    rows = s4_overhead.TABLES.rows(outcomes)
    assert find(rows, "lookups").compared > 0  # type: ignore[operator]
    assert 2.0 < find(rows, "table of").compared < 2.7  # type: ignore[operator]
    [pairs] = s4_traffic.PAIRS.cases(experiment.Scale.QUICK)
    [row] = s4_traffic.PAIRS.rows({pairs.name: pairs.run(print)})
    assert 1 / 20 < row.compared < 1  # type: ignore[operator]


def test_smaller_cache_has_fewer_hits() -> None:
    hits = {
        share: s4_cache._hits("lru", share, "boots", 4, print)["hits"] for share in (0.25, 0.5, 1.1)
    }
    assert hits[0.25] < hits[0.5] < hits[1.1]
    assert hits[1.1] == s4_cache._hits("fifo", 1.1, "boots", 4, print)["best"]


def test_every_figure_of_the_simulator_has_its_cases() -> None:
    assert list(paper_figures.EXPERIMENTS) == ["1", "6", "7", "8", "9", "10", "11", "table-1"]
    assert len(paper_figures.EXPERIMENTS["11"].make_cases()) == 72
