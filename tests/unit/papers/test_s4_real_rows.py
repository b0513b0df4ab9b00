# SPDX-License-Identifier: Apache-2.0
"""Rows of S4's experiments on real agents, from handmade outcomes."""

import pytest

from evaluation.papers import experiment
from evaluation.papers import s4_real
from evaluation.papers import s4_real_rows
from evaluation.papers import s4_real_traffic

Verdict = experiment.Verdict


def traffic_of(mean_s, limit_s=5.0, cv=0.7):
    return {"mean_s": mean_s, "idle_mean_s": mean_s / 2, "limit_s": limit_s, "traffic_cv": cv}


def phase(source=0, busy=0.25, mean_s=2.0):
    return {
        "source_chunks": source,
        "relayed_chunks": 1,
        "busy_share": busy,
        "fetched_chunks": {"source": 0, "home": 100, "peer": 7},
        "mean_s": mean_s,
    }


def remap_of(misses, moved=40, busy=0.05, mean_s=2.0):
    return {
        "first": phase(150),
        "second": phase(misses, busy, mean_s),
        "again": phase(),
        "without service": phase(),
        "names": 192,
        "moved": moved,
        "misses_if_asked_once": misses,
    }


def headline(rows):
    (found,) = [row for row in rows if row.is_headline]
    return found


@pytest.mark.parametrize(
    ("acstor_s", "verdict"), [(4.0, Verdict.BEATEN), (5.0, Verdict.REACHED), (9.0, Verdict.MISSED)]
)
def test_gain_is_the_collaborative_time_divided_by_ours(acstor_s, verdict):
    outcomes = {
        s4_real_traffic.COLLABORATIVE: traffic_of(13.0),
        s4_real_traffic.ACSTOR: traffic_of(acstor_s),
    }
    row = headline(s4_real_rows.traffic_rows(outcomes))
    assert row.ratio == 13.0 / acstor_s and row.verdict is verdict


def test_reason_of_a_missed_gain_names_the_bound_of_the_same_run():
    outcomes = {
        s4_real_traffic.COLLABORATIVE: traffic_of(12.0, limit_s=5.0),
        s4_real_traffic.ACSTOR: traffic_of(9.0, limit_s=6.0),
    }
    because = headline(s4_real_rows.traffic_rows(outcomes)).because
    assert because.startswith("2.18 is the upper bound") and "1.50 times as long" in because


def test_only_methods_that_ran_have_rows():
    both = {
        s4_real_traffic.COLLABORATIVE: traffic_of(12.0),
        s4_real_traffic.ACSTOR: traffic_of(6.0, cv=0.6),
    }
    few = s4_real_rows.traffic_rows(both)
    more = {way: traffic_of(8.0) for way in s4_real_traffic.WAYS} | both
    many = s4_real_rows.traffic_rows(more)
    assert len(many) == len(few) + 4
    (cv,) = [row for row in few if row.part.startswith("Figure 10")]
    assert cv.verdict is Verdict.BEATEN


def test_gain_needs_both_methods():
    (row,) = s4_real_rows.traffic_rows({s4_real_traffic.ACSTOR: traffic_of(6.0)})
    assert row.ours is None
    assert s4_real_rows.traffic_pairs({}) == {}


def test_lower_bounds_of_all_methods_are_a_pair():
    outcomes = {"a": traffic_of(6.0, 5.0), "b": traffic_of(6.0, 6.0)}
    assert s4_real_rows.traffic_pairs(outcomes) == {"alone from the source": [5.0, 6.0]}


def test_content_addressing_avoids_misses_of_moved_names():
    outcomes = {
        "by place": remap_of(40),
        "by OID": remap_of(30),
        "by content": remap_of(10),
        "by OID, no remap": remap_of(0, moved=0, busy=0.25, mean_s=4.0),
    }
    rows = s4_real_rows.remap_rows(outcomes)
    by_oid, by_content = [row for row in rows if row.part == "3.4.3"]
    assert by_oid.ours == 0.25 and by_oid.baseline == 0 and by_oid.verdict is Verdict.MISSED
    assert by_content.ours == 0.75 and by_content.verdict is Verdict.BEATEN
    (pays,) = [row for row in rows if row.goal == 1.0]
    assert pays.ratio == 2.0 and pays.verdict is Verdict.BEATEN


def test_remap_without_moves_has_no_ratio():
    rows = s4_real_rows.remap_rows({"by OID": remap_of(0, moved=0)})
    assert [row.ratio for row in rows if "misses after" in row.what] == [None]


def test_policy_is_compared_with_the_prediction_of_the_core():
    (row,) = s4_real_rows.policy_rows({"LRU": {"reads": 200, "hits": 50, "foreseen_hits": 52}})
    assert row.ours == 25 and row.baseline == 26


@pytest.mark.parametrize("one", s4_real.EXPERIMENTS, ids=lambda one: one.key)
def test_experiment_has_cases_and_accepts_no_outcomes(one):
    assert one.cases(experiment.Scale.WHOLE)
    names = [case.name for case in one.cases(experiment.Scale.WHOLE)]
    assert len(set(names)) == len(names)
    assert {case.name for case in one.cases(experiment.Scale.QUICK)} <= set(names)
    assert all(row.ours is None for row in one.rows({}))
