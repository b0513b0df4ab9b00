# SPDX-License-Identifier: Apache-2.0
"""Cases and rows of S3's figures, from handmade outcomes."""

import pytest
from matplotlib import figure

from evaluation.papers import experiment
from evaluation.papers import s3
from evaluation.papers import s3_beyond
from evaluation.papers import s3_cost
from evaluation.papers import s3_figure_2 as figure_2
from evaluation.papers import s3_rows
from evaluation.papers import s3_unpack

WHOLE, QUICK = experiment.Scale.WHOLE, experiment.Scale.QUICK


def played(hosts: int, mean_s: float, source: float = 1.0) -> experiment.Outcome:
    return {
        "hosts": hosts,
        "mean_s": mean_s,
        "min_s": mean_s - 0.1,
        "max_s": mean_s + 0.1,
        "mean_s_1": mean_s,
        "mean_s_2": mean_s,
        "limit_s": 4.0,
        "source_ratio": source,
        "from_source": source / hosts,
        "prefetched": 0.1,
        "on_demand": 0.9 - source / hosts,
        "fallbacks": 0,
    }


def outcomes_of(scale: experiment.Scale) -> dict[str, experiment.Outcome]:
    """Return outcomes of all cases: direct takes 4 s per host, and each separate group 4 s."""
    found: dict[str, experiment.Outcome] = {}
    for case in figure_2.cases(scale):
        if case.name.startswith("direct"):
            paired = figure_2.paired_hosts(scale)
            hosts = paired if "again" in case.name else int(case.name.split()[1])
            found[case.name] = {"direct": played(hosts, 4.0 * hosts, hosts)}
        elif case.name == figure_2.RING:
            found[case.name] = {"content, ring": played(max(figure_2.HOSTS[scale]), 4.05)}
        else:
            hosts, first = int(case.name.split()[0]), int(case.name.split()[2])
            groups = 2 if 0 < first < hosts else 1
            found[case.name] = {
                "simple": played(hosts, 4.2 * groups, groups),
                "content": played(hosts, 4.1),
            }
    return found


def rows_by(rows: list[experiment.Row | experiment.Absent], part: str) -> list[experiment.Row]:
    return [row for row in rows if isinstance(row, experiment.Row) and row.part == part]


@pytest.mark.parametrize("scale", experiment.Scale)
def test_names_of_cases_are_unique(scale: experiment.Scale) -> None:
    for one in s3.PAPER.experiments:
        names = [case.name for case in one.cases(scale)]
        assert len(names) == len(set(names)), one.key


def test_splits_that_do_not_divide_the_hosts_are_left_out() -> None:
    names = {case.name for case in figure_2.cases(WHOLE)}
    assert "4 hosts, 2 at Repo-1" in names
    assert "4 hosts, 1 at Repo-1" in names
    assert "16 hosts, 12 at Repo-1" in names
    assert figure_2.counts_of(1, "50 %") is None


@pytest.mark.parametrize("scale", experiment.Scale)
def test_gain_is_computed_for_the_most_hosts(scale: experiment.Scale) -> None:
    rows = list(s3_rows.rows(outcomes_of(scale)))
    half, *with_ring = rows_by(rows, "Figure 2(c)")
    assert half.ratio == pytest.approx(8.4 / 4.1, abs=1e-3)
    assert half.verdict is experiment.Verdict.REACHED
    assert f"of {max(figure_2.HOSTS[scale])} hosts" in half.what
    assert half.is_headline
    assert [row.is_headline for row in with_ring] == [False] * (scale is WHOLE)


def test_reduction_is_a_share_of_the_direct_time() -> None:
    rows = list(s3_rows.rows(outcomes_of(WHOLE)))
    simple, content = (row for row in rows_by(rows, "Figure 2(a)") if row.goal)
    assert content.ratio == pytest.approx(1 - 4.1 / 64, abs=1e-3)
    assert (simple.is_headline, content.is_headline) == (False, True)


def test_figure_2d_has_a_row_for_each_split() -> None:
    rows = rows_by(list(s3_rows.rows(outcomes_of(WHOLE))), "Figure 2(d)")
    assert [row.what.split()[0] for row in rows] == ["0", "4", "8", "12", "16"]


def test_bytes_of_the_source_beyond_chunks_are_explained() -> None:
    outcomes = outcomes_of(WHOLE)
    outcomes["16 hosts, 4 at Repo-1"]["content"] = {**played(16, 4.1), "source_ratio": 1.1}
    rows = rows_by(list(s3_rows.rows(outcomes)), "Figure 3")
    (row,) = (row for row in rows if row.what.startswith("25 %: packages"))
    assert row.verdict is experiment.Verdict.MISSED
    assert row.because.startswith("0.10 packages of it are not chunks")


def test_table_2_has_each_method_and_split_and_the_direct_one_once() -> None:
    rows = rows_by(list(s3_rows.rows(outcomes_of(WHOLE))), "Table II")
    assert len(rows) == 7
    assert all(row.goal and row.better is experiment.Better.LESS for row in rows)


@pytest.mark.parametrize("left_out", [case.name for case in figure_2.cases(WHOLE)])
def test_missing_case_removes_only_its_own_rows(left_out: str) -> None:
    outcomes = outcomes_of(WHOLE)
    all_rows = len(s3_rows.rows(outcomes))
    del outcomes[left_out]
    assert 0 < len(s3_rows.rows(outcomes)) <= all_rows
    figure_2.draw(figure.Figure(), outcomes)


def test_no_outcomes_give_no_rows() -> None:
    for one in s3.PAPER.experiments:
        assert list(one.rows({})) == []
        assert one.pairs({}) == {}


def test_direct_method_is_the_pair() -> None:
    assert figure_2.pairs(outcomes_of(QUICK)) == {"direct": [16.0, 16.0]}
    outcomes = outcomes_of(WHOLE)
    del outcomes["direct, again"]
    assert figure_2.pairs(outcomes) == {}


def test_cost_is_the_ratio_of_the_means() -> None:
    turns = {
        "turn 1": {"simple": played(8, 5.0), "content": played(8, 5.2)},
        "turn 2": {"simple": played(8, 5.0), "content": played(8, 5.0)},
    }
    [row] = s3_cost.rows(turns)
    assert row.ratio == pytest.approx(1.02)
    assert row.verdict is experiment.Verdict.REACHED
    assert "differ by 4 %" in row.because.replace("4%", "4 %")


def test_unpacking_is_compared_with_the_methods_that_ran() -> None:
    content = {"hosts": 4, "mean_s": 5.0}
    assert s3_unpack.rows({"direct": {"hosts": 4, "mean_s": 15.0}}) == []
    [row] = s3_unpack.rows({"content": content, "direct": {"hosts": 4, "mean_s": 15.0}})
    assert row.ratio == 3.0


def test_rows_beyond_the_paper_are_independent() -> None:
    ways = {"simple": played(8, 16.0, 4.0), "content": played(8, 5.0)}
    names = [row.ratio for row in s3_beyond.rows({s3_beyond.FOUR: ways})]
    assert names == [pytest.approx(3.2), pytest.approx(4.0)]
    news = s3_beyond.news(lambda line: None)
    by_count = news["bytes_per_chunk"]
    assert 8 <= by_count["128"] < by_count["16"] < by_count["1"]
    assert len(s3_beyond.rows({s3_beyond.NEWS: news})) == len(by_count)
