# SPDX-License-Identifier: Apache-2.0
import json
import pathlib

import pytest

from acstor_simulator import paper_figures
from acstor_simulator import simulation
from acstor_simulator.cmd import simulate
from acstor_simulator.model import boot_traces
from acstor_simulator.model import topology

TINY = [
    "compare",
    "--pods",
    "1",
    "--racks",
    "2",
    "--rack-hosts",
    "4",
    "--chunks",
    "20",
    "--images",
    "1",
    "--guests",
    "3",
]


def test_table_shows_all_policies(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(TINY) == 0
    table = capsys.readouterr().out
    assert all(policy in table for policy in simulation.POLICIES)


def test_json_output_has_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main([*TINY, "--json", "--policy", "local"]) == 0
    [result] = json.loads(capsys.readouterr().out)["results"]
    assert (result["policy"], len(result["boot_s"])) == ("local", 3)


@pytest.mark.parametrize(
    "wrong",
    [["--guests", "0"], ["--cv", "-1"], ["--mean", "nan"], ["--reach", "2"], ["--pods", "x"]],
)
def test_invalid_numbers_are_refused_by_name(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        simulate.main([*TINY, *wrong])
    assert stopped.value.code == 2
    assert wrong[0] in capsys.readouterr().err


def test_figure_command_writes_a_picture_and_its_numbers(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = boot_traces.Sizes(stored=10_000_000, data=20_000_000)
    small = simulation.Scenario(topology.Shape(1, 1, 4), guests=4, chunks=10, sizes=sizes)
    cases = [
        paper_figures.Case("CV 0.8", x, small, p) for x in (1.0, 2.0) for p in simulation.POLICIES
    ]
    monkeypatch.setitem(
        paper_figures.EXPERIMENTS, "6", paper_figures.Experiment("Small", "x", lambda: cases)
    )
    assert simulate.main(["figure", "6", "--output", str(tmp_path)]) == 0
    assert (tmp_path / "simulated-figure-6.png").read_bytes().startswith(b"\x89PNG")
    points = json.loads((tmp_path / "simulated-figure-6.json").read_text())
    assert [point["policy"] for point in points] == [case.policy for case in cases]
