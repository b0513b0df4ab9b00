# SPDX-License-Identifier: Apache-2.0
import itertools

import pytest
from matplotlib import figure

from evaluation.papers import experiment
from evaluation.papers import s0_figures
from evaluation.papers import s0_pattern_rows as printed
from evaluation.papers import s0_patterns as played
from evaluation.papers import s0_pictures

WHOLE, QUICK = experiment.Scale.WHOLE, experiment.Scale.QUICK
PLANS = (played.SYNC_SAME, played.SHIFTED_SAME, played.SYNC_DISJOINT)
CLAIMS = (s0_figures.SYNC_SAME, s0_figures.SHIFTED_SAME, s0_figures.SYNC_DISJOINT)


def outcome(completion=2.0, least=0.4, most=0.5, unread=0.0, prefetched=0.5):
    return {
        "completion": completion,
        "rate": {"min": least, "mean": (least + most) / 2, "max": most},
        "unread_share": unread,
        "split": {
            "from source": 0.1,
            "peers get": 0.9 - prefetched,
            "peers prefetch": prefetched,
        },
    }


def outcomes(hosts, **changed):
    """Return an outcome for every method, with some of them replaced."""
    ways = (*played.VARIANTS, played.DIRECT, played.DIRECT_AGAIN, played.BROADCAST)
    return {played.name(way, hosts): changed.get(way.replace("-", "_"), outcome()) for way in ways}


def row(rows, word):
    [found] = [row for row in rows if word in row.what]
    return found


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.key)
@pytest.mark.parametrize("scale", [WHOLE, QUICK])
def test_cases_have_unique_names_and_a_baseline_at_both_ends(plan, scale):
    names = [case.name for case in played.cases(plan, scale)]
    assert len(set(names)) == len(names)
    most = max(plan.counts[scale])
    assert played.name(played.DIRECT, most) in names
    if scale is WHOLE:
        assert names[-1] == played.name(played.DIRECT_AGAIN, most)
        assert not any(name.endswith(", 1") and "acstor-" in name for name in names)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.key)
@pytest.mark.parametrize("hosts", [8, 32])
def test_patterns_have_whole_chunks_and_rate_independent_limits(plan, hosts):
    made = [plan.make(hosts, mbit) for mbit in (50.0, 100.0)]
    for pattern in made:
        for reading, (offset, length) in itertools.product(
            pattern.readings, pattern.readings[0].spans
        ):
            assert not offset % played.CHUNK_BYTES and not length % played.CHUNK_BYTES
            assert reading.length
    assert made[0].limit_s == pytest.approx(made[1].limit_s, rel=0.25)


def test_limit_is_scaled_with_the_region_as_in_the_paper():
    region_chunks = played.SYNC_DISJOINT.pattern(32).readings[0].length // played.CHUNK_BYTES
    assert played.SYNC_DISJOINT.limit_chunks(32) == round(region_chunks / 8)
    assert played.SYNC_SAME.limit_chunks(32) >= 1


def test_goals_apply_only_to_32_hosts():
    direct, acstor = outcome(completion=33.0), outcome(completion=2.2)
    for hosts, verdict in ((32, "beaten"), (8, "shown")):
        found = outcomes(hosts, direct=direct, acstor=acstor)
        rows = printed.rows(s0_figures.SYNC_SAME, found)
        of_direct = row(rows, "completion, acstor against direct")
        assert of_direct.ratio == pytest.approx(15.0) and of_direct.verdict == verdict
        assert of_direct.is_headline == (hosts == 32)


def test_table_2_has_a_row_with_the_ratio_of_each_variant_as_its_goal():
    found = outcomes(32, direct=outcome(least=0.02, most=0.02))
    rows = [row for row in printed.rows(s0_figures.SYNC_SAME, found) if row.part == "Table 2"]
    assert [round(row.goal, 2) for row in rows if row.goal] == [9.55, 10.0, 8.64]
    assert all(row.ratio == pytest.approx(22.5) for row in rows)


def test_unfair_throughput_is_a_miss():
    found = outcomes(32, acstor=outcome(least=0.4, most=0.6))
    rows = printed.sync_same_only(found)
    unfair = row(rows, "fastest host over that of the slowest")
    assert unfair.ours == pytest.approx(1.5) and unfair.verdict == "missed"


def test_own_goal_is_shown_for_fewer_hosts_as_well():
    found = outcomes(32) | outcomes(16, acstor=outcome(completion=1.1))
    own = [row for row in printed.sync_same_only(found) if row.part == "Own goal"]
    assert [row.verdict for row in own] == ["reached", "missed"] and own[1].because


def test_waste_is_compared_with_waste_without_a_limit():
    unread = {"acstor_512": 0.2, "acstor_inf": 1.0, "acstor": 0.1, "acstor_0": 0.1, "direct": 0.3}
    found = outcomes(32, **{way: outcome(unread=share) for way, share in unread.items()})
    paper, own = printed.disjoint_only(found)
    assert paper.ratio == pytest.approx(9.0) and paper.verdict == "beaten"
    assert own.ratio and own.ratio > paper.ratio  # no waste causes no division by zero


@pytest.mark.parametrize("claims", CLAIMS, ids=lambda claims: claims.plan.key)
def test_rows_and_pictures_accept_partial_results(claims):
    whole = outcomes(32) | outcomes(8)
    for missing in (*whole, None):
        left = {name: got for name, got in whole.items() if name != missing}
        rows = printed.rows(claims, left)
        assert rows and all(row.part for row in rows)
        printed.sync_same_only(left)
        printed.disjoint_only(left)
    for case in whole:
        printed.rows(claims, {case: whole[case]})
    assert printed.sync_same_only({}) == [] == printed.disjoint_only({})


def test_picture_is_drawn_from_partial_results():
    whole = outcomes(32) | outcomes(8)
    for left in (whole, {name: got for name, got in whole.items() if "direct" in name}, {}):
        s0_pictures.draw(figure.Figure(), left)


def test_baseline_that_ran_twice_is_a_pair():
    found = outcomes(32, direct=outcome(completion=30.0))
    assert printed.pairs(found) == {"direct": [30.0, 2.0]}
    del found[played.name(played.DIRECT_AGAIN, 32)]
    assert printed.pairs(found) == {} == printed.pairs({})
