# SPDX-License-Identifier: Apache-2.0
"""Rows of S2 come from any subset of the outcomes."""

import json

import pytest

from evaluation.papers import experiment
from evaluation.papers import s2
from evaluation.papers import s2_boot
from evaluation.papers import s2_busy
from evaluation.papers import s2_catalogue
from evaluation.papers import s2_many
from evaluation.papers import s2_overhead
from evaluation.papers import s2_replay
from evaluation.papers import s2_scene
from evaluation.papers import s2_volumes

_ALL = {one.key: one for one in s2.PAPER.experiments}


@pytest.mark.parametrize("key", _ALL)
@pytest.mark.parametrize("scale", experiment.Scale)
def test_cases_have_unique_names(key: str, scale: experiment.Scale):
    names = [case.name for case in _ALL[key].cases(scale)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("key", _ALL)
def test_no_outcomes_give_no_figures(key: str):
    found = _ALL[key].rows({})
    assert all(isinstance(row, experiment.Absent) or row.ours is None for row in found)
    assert not _ALL[key].pairs({})


def _boots(**seconds: float) -> dict[str, experiment.Outcome]:
    policies = {"normal": s2_scene.ALL_AT_ONCE, "acstor": s2_scene.ACSTOR}
    return {
        s2_many.name_of(s2_scene.Scene("hdd", policies[name], 16)): {"all_s": value}
        for name, value in seconds.items()
    }


def _row(found, what: str) -> experiment.Row:
    rows = [row for row in found if isinstance(row, experiment.Row) and what in row.what]
    assert len(rows) == 1
    return rows[0]


@pytest.mark.parametrize(
    ("normal_s", "verdict"),
    [(150.0, "beaten"), (131.0, "reached"), (100.0, "missed")],
)
def test_gain_with_different_images_is_compared_with_thirteen(normal_s: float, verdict: str):
    outcomes = _boots(normal=normal_s, acstor=10.0)
    found = s2_many.rows("Figure 11", s2_many.DIFFERENT, outcomes)
    row = _row(found, "HDD, 16 guests")
    assert row.is_headline
    assert (row.ratio, row.verdict.value) == (normal_s / 10, verdict)


def test_gain_needs_both_outcomes():
    found = s2_many.rows("Figure 11", s2_many.DIFFERENT, _boots(acstor=10.0))
    assert _row(found, "HDD, 16 guests").ours is None


def test_baseline_that_was_measured_twice_is_a_pair():
    outcomes = {
        s2_many.STEADY_CASE: {"all_s": 8.0},
        s2_many.STEADY_CASE + s2_many.AGAIN: {"all_s": 9.0},
    }
    assert s2_many.pairs(outcomes) == {s2_many.STEADY_CASE: [8.0, 9.0]}


def test_programs_and_memory_have_their_claims():
    disk = {
        f"ssd, 15 programs, {policy}": {"all_s": seconds}
        for policy, seconds in ((s2_scene.ALL_AT_ONCE, 20.0), (s2_scene.ACSTOR, 4.0))
    }
    assert s2_busy.disk_rows(disk)[0].verdict is experiment.Verdict.REACHED
    memory = {
        f"hdd, {s2_busy.MEMORIES_MIB[-1]} MiB, {policy}": {"all_s": seconds}
        for policy, seconds in (
            (s2_scene.ALL_AT_ONCE, 10.0),
            (s2_scene.PREFETCHING, 9.0),
            (s2_scene.ACSTOR, 4.0),
        )
    }
    assert [row.verdict.value for row in s2_busy.memory_rows(memory)] == ["missed", "beaten"]


def test_reduction_rate_covers_all_images_together():
    one = {"image_mb": 1000.0, "filled_mb": 500.0, "boot_image_mb": 25.0}
    two = {"image_mb": 1000.0, "filled_mb": 500.0, "boot_image_mb": 15.0}
    found = s2_catalogue.rows({"Debian 12": one, "Debian 13": two})
    assert _row(found, "2 images: reduction rate, of the full images").ours == pytest.approx(98.0)
    assert _row(found, "2 images: reduction rate, of their data").ours == pytest.approx(96.0)
    assert _row(found, "mean length").ours == pytest.approx(20.0)


def test_overhead_is_compared_with_ten_percent():
    took_s = {s2_overhead.PLAIN: 2.0, s2_overhead.BARE: 2.4, s2_overhead.MIRROR: 2.1}
    outcome = {
        f"{way}, {order}": {"s": seconds}
        for order in ("sequential", "random")
        for way, seconds in took_s.items()
    }
    rows = s2_overhead.read_rows({"hdd": outcome})
    assert [row.verdict.value for row in rows] == ["reached", "shown"] * 2
    assert [round(row.ratio, 2) for row in rows] == [1.05, 1.2] * 2


def test_databases_are_compared_by_the_mean_of_their_guests():
    tps = {s2_overhead.PLAIN: (80.0, 100.0, 90.0), s2_overhead.MIRROR: (70.0, 95.0, 96.0)}
    outcomes = {
        f"{way}, guest {number}": {"tps": rate}
        for way, rates in tps.items()
        for number, rate in enumerate(rates, 1)
    }
    (row,) = s2_overhead.database_rows(outcomes)
    assert (row.ours, row.baseline) == (87.0, 90.0)
    assert "80.0 to 100.0" in row.because
    assert s2_overhead.database_pairs(outcomes) == {s2_overhead.PLAIN: [80.0, 100.0, 90.0]}


def test_bytes_read_by_copies_grow_with_guests():
    outcomes = {
        s2_volumes.volume_name(count, True): {"device": {"read_bytes": count * 60e6}}
        for count in (1, 4)
    }
    (row,) = s2_volumes.volume_rows(outcomes)
    assert (row.ratio, row.verdict) == (4.0, experiment.Verdict.REACHED)


def test_replay_reads_and_writes_the_recorded_requests(tmp_path):
    image, own, ops = (tmp_path / name for name in ("image", "own", "ops.json"))
    image.write_bytes(bytes(8192))
    own.touch()
    ops.write_text(json.dumps([[0.0, s2_boot.READ, 0, 512], [0.01, s2_boot.WRITE, 4096, 512]]))
    plan = {
        "ops": str(ops),
        "think": 2.0,
        "in_turn": True,
        "guests": [{"image": str(image), "own": str(own)}] * 2,
        "prefetch": [{"image": str(image), "spans": [[0, 4096]]}],
    }
    found = s2_replay.run(plan)
    assert own.stat().st_size == 4608
    first_s, second_s = found["each_s"]
    assert second_s >= first_s + 0.01
    assert first_s >= 0.01
