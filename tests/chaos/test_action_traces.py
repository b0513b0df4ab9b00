# SPDX-License-Identifier: Apache-2.0
"""Traces of the swarm: equal for equal rules in each process, and different for other rules."""

import pathlib
import subprocess
import sys

import pytest

from acstor_agent.engine.fetch import source_selection
from tests.chaos import action_traces

SEEDS = range(2)
RECORDED = pathlib.Path(__file__).with_name("action_traces.txt")
SHORT, COMPARED = 2000, 6
"""Number of compared runs, which have few actions."""


def test_trace_does_not_depend_on_the_hash_seed():
    argv = [sys.executable, "-m", "tests.chaos.action_traces", "show", "1"]
    shown = [
        subprocess.run(argv, env={"PYTHONHASHSEED": seed}, check=True, capture_output=True).stdout
        for seed in ("1", "2")
    ]
    assert shown[0] == shown[1]
    assert shown[0].count(b"\n") == action_traces.digest(1)[1].actions > 100


def test_recorded_traces_compare_equal(tmp_path, capsys):
    file = tmp_path / "traces.txt"
    action_traces.record(file, SEEDS)
    assert [seed for seed, _, _ in action_traces.read(file)] == list(SEEDS)
    assert action_traces.compare(file)
    assert "2 seeds, 0 with other actions" in capsys.readouterr().out


def test_changed_rule_alters_the_traces_and_shows_the_outcomes(tmp_path, capsys, monkeypatch):
    file = tmp_path / "traces.txt"
    action_traces.record(file, SEEDS)
    monkeypatch.setattr(source_selection, "ACTING_HOMES", 0)
    assert not action_traces.compare(file)
    reported = capsys.readouterr().out
    assert "2 seeds, 0 with" not in reported
    assert "asked: " in reported and "%)" in reported


def short_runs():
    recorded = action_traces.read(RECORDED)
    return [one for one in recorded if one[2].actions < SHORT][:COMPARED]


@pytest.mark.parametrize("recorded", short_runs(), ids=lambda recorded: str(recorded[0]))
def test_rules_give_the_recorded_traces(recorded):
    """After a change of the rules: ``python -m tests.chaos.action_traces record`` this file."""
    seed, made, outcome = recorded
    assert action_traces.digest(seed) == (made, outcome)
