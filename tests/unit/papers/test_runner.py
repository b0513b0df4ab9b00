# SPDX-License-Identifier: Apache-2.0
"""Cases run once, are saved at once, and are repeated only after an unsteady run."""

import functools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from collections.abc import Sequence

import pytest

from evaluation.bench import harness
from evaluation.papers import experiment
from evaluation.papers import runner
from evaluation.papers import store

WHOLE = experiment.Scale.WHOLE
CHECKOUT = pathlib.Path(__file__).parents[3]


def case(name: str, run: Callable[[harness.Say], experiment.Outcome], **more: object) -> object:
    return experiment.Case(name, run, 1.0, **more)  # type: ignore[arg-type]


def made(*cases: object, **more: object) -> experiment.Experiment:
    return experiment.Experiment(
        "S0-try",
        "A try",
        "",
        "as it is",
        lambda _: cases,  # type: ignore[arg-type, return-value]
        lambda _: (),
        **more,  # type: ignore[arg-type]
    )


def run(folder: pathlib.Path, *wanted: experiment.Experiment) -> tuple[bool, list[str]]:
    lines: list[str] = []
    return runner.Runner(folder, WHOLE, lines.append).run(wanted), lines


def outcomes(folder: pathlib.Path) -> dict[str, experiment.Outcome]:
    return store.load(folder, "S0-try", WHOLE).outcomes


def virtual(number: int, say: harness.Say) -> experiment.Outcome:
    """A case in virtual time, which must be picklable."""
    say("nobody hears this")
    return {"number": number, "process": os.getpid()}


def test_case_with_an_outcome_is_not_run_again(tmp_path: pathlib.Path) -> None:
    ran: list[str] = []

    def note(name: str, _: harness.Say) -> experiment.Outcome:
        ran.append(name)
        return {}

    one = made(*(case(name, functools.partial(note, name)) for name in ("a", "b")))
    assert run(tmp_path, one)[0]
    is_complete, lines = run(tmp_path, one)
    assert is_complete
    assert ran == ["a", "b"]
    assert lines[0] == "2 cases were run before, 0 are left"


def test_outcome_is_saved_before_the_next_case_runs(tmp_path: pathlib.Path) -> None:
    def stopped(_: harness.Say) -> experiment.Outcome:
        assert outcomes(tmp_path) == {"first": {"value": 3}}
        raise KeyboardInterrupt

    one = made(case("first", lambda _: {"value": 3}), case("second", stopped))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, one)
    again = made(case("first", lambda _: {"value": 4}), case("second", lambda _: {"value": 5}))
    assert run(tmp_path, again)[0]
    assert outcomes(tmp_path) == {"first": {"value": 3}, "second": {"value": 5}}


def test_failed_case_stops_no_other_and_is_run_again(tmp_path: pathlib.Path) -> None:
    def lacks(_: harness.Say) -> experiment.Outcome:
        raise harness.CannotRun("there is no glusterd")

    is_complete, lines = run(tmp_path, made(case("a", lacks), case("b", lambda _: {"value": 1})))
    assert not is_complete
    assert "a could not run: there is no glusterd" in lines
    kept = store.load(tmp_path, "S0-try", WHOLE)
    assert kept.refusals == {"a": "there is no glusterd"}
    assert kept.outcomes == {"b": {"value": 1}}
    assert run(tmp_path, made(case("a", lambda _: {"value": 2}), case("b", lacks)))[0]
    assert outcomes(tmp_path) == {"a": {"value": 2}, "b": {"value": 1}}


def test_error_of_a_case_is_recorded_with_its_traceback(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: harness.Say) -> experiment.Outcome:
        return {"value": 1 / 0}

    assert not run(tmp_path, made(case("a", broken)))[0]
    assert "ZeroDivisionError" in store.load(tmp_path, "S0-try", WHOLE).refusals["a"]
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_cases_in_virtual_time_run_in_other_processes(tmp_path: pathlib.Path) -> None:
    cases = [case(str(n), functools.partial(virtual, n), is_timed=False) for n in range(3)]
    assert run(tmp_path, made(*cases))[0]
    found = outcomes(tmp_path)
    assert sorted(outcome["number"] for outcome in found.values()) == [0, 1, 2]
    assert os.getpid() not in {outcome["process"] for outcome in found.values()}


def turns(baselines: Sequence[float]) -> tuple[experiment.Experiment, list[float]]:
    """Return an experiment with these baselines, two for each turn; and the remaining ones."""
    left = list(baselines)
    cases = [case(name, lambda _: {"s": left.pop(0)}) for name in ("first", "again")]
    return made(
        *cases, pairs=lambda found: {"direct": [found[name]["s"] for name in ("first", "again")]}
    ), left


@pytest.mark.parametrize(
    ("baselines", "kept", "is_steady"),
    [
        ((10.0, 11.0), (10.0, 11.0), True),
        ((10.0, 20.0, 10.0, 11.0), (10.0, 11.0), True),
        ((10.0, 20.0, 10.0, 15.0), (10.0, 15.0), False),
        ((10.0, 15.0, 10.0, 20.0), (10.0, 15.0), False),
    ],
)
def test_unsteady_pair_is_repeated_once_and_the_steadier_turn_kept(
    tmp_path: pathlib.Path,
    baselines: tuple[float, ...],
    kept: tuple[float, float],
    is_steady: bool,
) -> None:
    one, left = turns(baselines)
    run(tmp_path, one)
    assert left == []
    found = store.load(tmp_path, "S0-try", WHOLE)
    assert tuple(found.outcomes[name]["s"] for name in ("first", "again")) == kept
    assert (runner.unsteady(one, found) is None) is is_steady
    run(tmp_path, one)  # there is no third turn: no baseline would be left


def test_lack_of_disk_space_is_reported_before_a_case_runs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=runner.ROOM_BYTES - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(runner.NoRoom, match="S0-try, a may need 3072"):
        run(tmp_path, made(case("a", lambda _: pytest.fail("it was run"))))


def test_remaining_time_follows_the_durations_of_cases(tmp_path: pathlib.Path) -> None:
    def slow(_: harness.Say) -> experiment.Outcome:
        time.sleep(0.2)
        return {}

    cases = [experiment.Case("a", slow, 0.1), experiment.Case("b", slow, 300.0)]
    _, lines = run(tmp_path, made(*cases))
    assert "[2 left, about 5 min] S0-try: a" in lines
    minutes = next(
        re.findall(r"1 left, about (\d+) min", line) for line in lines if "1 left" in line
    )
    assert int(minutes[0]) >= 10


STOPPABLE = """
import functools, pathlib, sys, time
from evaluation.papers import experiment, runner

def wait(_):
    pathlib.Path(sys.argv[1], "began").touch()
    time.sleep(60)
    return {}

if __name__ == "__main__":
    case = experiment.Case("slow", wait, 1.0, is_timed=False)
    one = experiment.Experiment("S0-try", "", "", "", lambda _: (case,), lambda _: ())
    runner.Runner(pathlib.Path(sys.argv[1]), experiment.Scale.WHOLE, print).run([one])
"""


def test_interrupt_ends_the_processes_of_virtual_cases(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "stoppable.py"
    script.write_text(STOPPABLE)
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    process = subprocess.Popen(
        [sys.executable, script, tmp_path],
        env=environment,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "began").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(30) != 0
    assert time.monotonic() - began < 30
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_file_that_is_no_result_is_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "S0-try.json").write_text(json.dumps({"scale": "whole"}))
    with pytest.raises(store.NoResult, match=r"S0-try\.json is not a result"):
        run(tmp_path, made(case("a", lambda _: {})))


def test_quick_result_does_not_count_as_a_whole_one(tmp_path: pathlib.Path) -> None:
    quick = runner.Runner(tmp_path, experiment.Scale.QUICK, lambda _: None)
    quick.run([made(case("a", lambda _: {"value": 1}))])
    run(tmp_path, made(case("a", lambda _: {"value": 2})))
    assert outcomes(tmp_path) == {"a": {"value": 2}}


def test_failed_write_of_a_result_keeps_the_old_one(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = made(case("a", lambda _: {"value": 1}))
    run(tmp_path, one)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        run(tmp_path, made(case("b", lambda _: {"value": 2})))
    assert outcomes(tmp_path) == {"a": {"value": 1}}
    assert [file.name for file in tmp_path.iterdir()] == ["S0-try.json"]
