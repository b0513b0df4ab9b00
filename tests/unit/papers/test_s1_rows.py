# SPDX-License-Identifier: Apache-2.0
"""S1's rows from handmade outcomes, and their absence for missing cases."""

import functools
import itertools
import json
import pickle

import pytest

from evaluation.bench import disk_lab
from evaluation.bench import disk_simulation as simulation
from evaluation.bench import disk_workloads as workloads
from evaluation.bench import s1_disk
from evaluation.papers import experiment
from evaluation.papers import s1
from evaluation.papers import s1_beyond
from evaluation.papers import s1_guests
from evaluation.papers import s1_mixed
from evaluation.papers import s1_real
from evaluation.papers import s1_runs
from evaluation.papers import s1_sorts
from evaluation.papers import s1_writes

WAITS = {"at_once": 9, "met": 80, "expired": 10, "met_alone": 10, "expired_alone": 0}
APPLICATIONS = ("VM1 SR-M", "VM1 SR-S", "VM2 SW-M", "VM2 SW-S", "VM3 SR-M", "VM3 RRW")


def outcome(seconds: float, **more: object) -> experiment.Outcome:
    names = (*APPLICATIONS, "VM4 RR", "VM4 RW", "VD1 sort", "TPCH q6", "TPCH q19")
    guests = ("VM1", "VM2", "VM3", "VM4", "TPCH")
    return {
        "s": seconds,
        "seeks_percent": [80.0, 15.0, 5.0],
        "mb_s": dict.fromkeys(guests, 100 / seconds),
        "all_mb_s": 400 / seconds,
        "ends_s": dict.fromkeys(names, seconds),
        "waits": WAITS,
        "requests_s": {name: {"mean": 60.0, "least": 40.0} for name in guests},
        **more,
    }


def rows_of(found: object) -> list[experiment.Row]:
    return [row for row in found if isinstance(row, experiment.Row)]


def with_policies(**more: object) -> dict[str, experiment.Outcome]:
    others = {p: outcome(20.0, **more) for p in s1_runs.POLICIES}
    return others | {"pregather": outcome(10.0, **more)}


def test_four_guests_give_the_paper_s_headlines() -> None:
    found = rows_of(s1_guests.rows(with_policies()))
    headlines = [row for row in found if row.is_headline]
    assert [row.goal for row in headlines] == [75.78, 1.5, 1.6, 2.2]
    assert [row.ratio for row in headlines[1:]] == [2.0, 2.0, 2.0]
    assert [row.verdict.value for row in headlines] == ["beaten", "beaten", "beaten", "missed"]
    less = next(row for row in found if row.part == "Figure 6(a)")
    assert less.ratio == pytest.approx(50.0)
    assert less.verdict is experiment.Verdict.MISSED


@pytest.mark.parametrize("rows", [s1_guests.rows, s1_sorts.sort_rows, s1_sorts.beside_rows])
def test_missing_policy_gives_no_rows(rows: object) -> None:
    found = with_policies()
    del found["cfq"]
    assert rows(found) == []


@pytest.mark.parametrize("one", s1.PAPER.experiments, ids=lambda one: one.key)
def test_no_outcomes_give_no_rows_and_no_pairs(one: experiment.Experiment) -> None:
    assert list(one.rows({})) == []
    assert one.pairs({}) == {}


@pytest.mark.parametrize("scale", experiment.Scale)
@pytest.mark.parametrize("one", s1.PAPER.experiments, ids=lambda one: one.key)
def test_cases_have_unique_names_and_virtual_ones_can_be_pickled(
    one: experiment.Experiment, scale: experiment.Scale
) -> None:
    cases = one.cases(scale)
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        assert case.is_timed or pickle.loads(pickle.dumps(case.run))


def test_table_3_compares_both_applications_with_both_policies() -> None:
    outcomes = {
        f"{name} {policy}": outcome(9.0, both_s=[10.0, 20.0] if "pre" in policy else [15.0, 30.0])
        for name in ("SWSW", "SRRR")
        for policy in s1_mixed.POLICIES
    }
    found = rows_of(s1_mixed.rows(outcomes))
    times = [row for row in found if row.part == "Table 3"]
    assert len(times) == 2 * 2 * 2
    assert all(row.ratio == 1.5 for row in times)
    assert {row.goal for row in times if row.what.startswith("SWSW")} == {None}
    waits = [row for row in found if row.part == "Table 3, 5.1"]
    assert [row.ours for row in waits] == [90.0, 90.0]  # no random ones ran
    assert "of 100)" in waits[0].what


def test_figure_5_needs_cfq_and_the_paper_s_zones() -> None:
    known = {"side by side: 2000": {"s": 10.0, "zero_percent": 96.0}}
    assert s1_mixed.zone_rows(known) == []
    known |= {
        "side by side: cfq": {"s": 30.0, "zero_percent": 66.0},
        "side by side: 10000000": {"s": 29.0, "zero_percent": 66.0},
    }
    found = rows_of(s1_mixed.zone_rows(known))
    assert [row.verdict.value for row in found] == ["reached", "beaten", "shown"]
    assert found[1].ratio == 3.0


def test_sorts_and_queries_are_compared_with_the_paper() -> None:
    sort = rows_of(s1_sorts.sort_rows(with_policies()))
    assert sort[0].is_headline
    assert sort[0].ratio == 2.0
    beside = rows_of(s1_sorts.beside_rows(with_policies()))
    assert [row.what.split(":")[0] for row in beside[:3]] == ["sort", "q6", "q19"]
    assert beside[-1].verdict is experiment.Verdict.MISSED
    (memory, _, share) = s1_sorts.cost_rows({"four guests": {"memory_mib": 0.5, "cpu_us": 20.0}})
    assert (memory.ours, share.ours) == (512, 2.0)
    assert memory.verdict is experiment.Verdict.BEATEN


def test_writing_methods_are_compared_if_both_policies_ran() -> None:
    one = {"all_mb_s": 30.0, "zero_percent": 70.0, "first_s": 10.0, "waits": WAITS}
    way = s1_writes.ASSUMED
    outcomes = {
        f"{way}: SWSW: pregather": one,
        f"{way}: SWSW: cfq": one | {"first_s": 15.0},
        f"{way}: {s1_writes.FOUR}: pregather": one,
    }
    (row,) = rows_of(s1_writes.rows(outcomes))
    assert row.ratio == 1.5
    assert "assumed" in row.what
    assert row.verdict is experiment.Verdict.SHOWN


def real(mb_s: float, seconds: float) -> dict[str, object]:
    return {
        "took_s": {"VM1": {"0 SR": seconds, "1 SR": seconds}},
        "all_mb_s": mb_s,
        "seeks": {"zero": 30, "near": 10, "far": 10},
        "waits": WAITS,
    }


def test_real_time_has_pairs_and_rows() -> None:
    policies = {p: real(10.0, 2.0) for p in disk_lab.POLICIES} | {"pregather": real(30.0, 1.0)}
    outcomes = {"SRSR": {"policies": policies, "again": real(11.0, 2.0)}}
    assert s1_real.pairs(outcomes) == {}
    assert s1_real.pairs({s1_real.FOUR: outcomes["SRSR"]}) == {s1_real.FOUR: (10.0, 11.0)}
    found = rows_of(s1_real.rows(outcomes))
    assert [row.ratio for row in found[:3]] == [3.0, 3.0, 3.0]
    assert found[3].ratio == 2.0
    assert found[4].ours == 60.0
    assert found[5].ours == 90.0


def test_real_guests_use_disjoint_disk_ranges() -> None:
    wanted = disk_lab.wanted_of(disk_lab.GUESTS["four guests"], 1.0)
    spans = sorted(
        (one.is_write, one.start, one.start + one.length)
        for applications in wanted.values()
        for one in applications
    )
    assert len(spans) == 9
    for (is_write, _, stop), (next_is_write, start, _) in itertools.pairwise(spans):
        assert is_write != next_is_write or stop <= start
    assert spans[-1][2] <= disk_lab.DISK_BYTES


def test_small_run_in_virtual_time_can_be_saved_as_json() -> None:
    make = functools.partial(workloads.four_guests, 4 * workloads.MIB)
    found = s1_disk.play(make, "pregather", lambda _: None)
    kept = json.loads(json.dumps(s1_runs.with_rates(found, is_drawn=True)))
    assert set(kept["ends_s"]) == {*APPLICATIONS, "VM4 RR", "VM4 RW"}
    assert sum(kept["seeks_percent"]) == pytest.approx(100, abs=0.01)


def test_other_guests_use_the_disk_until_the_guest_is_done() -> None:
    guests = s1_beyond.with_others(4 * workloads.MIB, s1_beyond.BESIDE)
    assert [guest.name for guest in guests] == ["guest", *s1_beyond.BESIDE]
    found = simulation.Simulation(guests, s1_disk.disk_schedulers.SCHEDULERS["pregather"]()).run()
    kept = s1_beyond._class_summary(found)
    assert kept["s"] == pytest.approx(found.guests[0].ended_s, abs=0.001)


def test_two_guests_and_a_peer_have_rows_and_a_pair() -> None:
    rates = {"guests_mb_s": 10.0, "peer_mb_s": 4.0, "all_mb_s": 12.0}
    policies = {"none": rates, "pregather": {**rates, "guests_mb_s": 40.0}}
    outcomes = {"two guests and a peer": {"policies": policies, "again": rates}}
    assert [row.ratio for row in rows_of(s1_beyond.peer_rows(outcomes))] == [4.0, 1.0]
    assert s1_beyond.peer_pairs(outcomes) == {"two guests and a peer": (10.0, 10.0)}
