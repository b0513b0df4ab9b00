# SPDX-License-Identifier: Apache-2.0
"""The harness reports benchmark results in a fixed form."""

import json
import os
import pathlib
import re
import runpy
import subprocess
import sys
import time
from collections.abc import Iterable
from collections.abc import Iterator

import pytest
from matplotlib import figure

from evaluation.bench import harness


def add(
    bench_id: str,
    target: str,
    result: harness.Result | Exception,
    registry: dict[str, harness.Benchmark] | None = None,
) -> harness.Benchmark:
    """Return a benchmark, registered beside those of a registry, or alone."""
    into = {} if registry is None else registry
    entry = harness.Entry(f"Title of {bench_id}", harness.Target.parse(target), "GB/s")

    @harness.measures(bench_id, entries={bench_id: entry}, registry=into)
    def run(say: harness.Say) -> harness.Result:
        say(f"{bench_id} at work")
        if isinstance(result, Exception):
            raise result
        return result

    return into[bench_id]


def run(
    results: pathlib.Path,
    *wanted: harness.Benchmark,
    known: Iterable[harness.Benchmark] = (),
) -> tuple[bool, list[str]]:
    lines: list[str] = []
    return harness.run_benchmarks(wanted, known or wanted, results, lines.append), lines


@pytest.mark.parametrize(
    ("text", "value", "is_met"),
    [
        (">= 2", 2.0, True),
        (">= 2", 1.99, False),
        ("<=1.15", 1.15, True),
        ("< 1", 1.0, False),
        ("> 1", 1.01, True),
        ("<= 2, >= 0.6", (2.0, 0.6), True),
        ("<= 2, >= 0.6", (2.1, 0.6), False),
        ("<= 2, >= 0.6", (2.0, 0.5), False),
    ],
)
def test_target_is_met_only_within_every_bound(
    text: str, value: harness.Value, is_met: bool
) -> None:
    assert harness.Target.parse(text).is_met(value) is is_met


@pytest.mark.parametrize("text", ["", "2", "= 2", ">= 2,", ">= x"])
def test_malformed_target_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a target"):
        harness.Target.parse(text)


def test_last_line_gives_id_value_target_and_verdict(tmp_path: pathlib.Path) -> None:
    done = run(tmp_path, add("P9", ">= 2", harness.Result({"P9": 6.54321})))
    assert done[0] and done[1][-1] == "P9 6.543 >=2 pass"
    done = run(tmp_path, add("P5", "<= 2, >= 0.6", harness.Result({"P5": (1.5, 0.5)})))
    assert done[0] and done[1][-1] == "P5 1.5,0.5 <=2,>=0.6 fail"


def test_uncommitted_code_is_reported_but_not_new_results(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e", *words], check=True)

    code, page = tmp_path / "code.py", tmp_path / "evaluation/papers/results/S0.json"
    page.parent.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for path in (code, page):
        path.write_text("1")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message=1")
    reported = []
    for path in (page, code):
        path.write_text("2")
        reported.append(harness.machine(tmp_path)["has_local_changes"])
    assert reported == [False, True]


def test_json_and_picture_are_saved(tmp_path: pathlib.Path) -> None:
    results = tmp_path / "new" / "folder"
    run(results, add("P9", ">= 2", harness.Result({"P9": 1.5}, {"sha1": 2.0})))
    record = json.loads((results / "P9.json").read_text())
    assert set(record.pop("machine")) == {
        "cpu",
        "cores",
        "kernel",
        "python",
        "commit",
        "has_local_changes",
        "date",
    }
    assert record == {
        "id": "P9",
        "title": "Title of P9",
        "value": 1.5,
        "unit": "GB/s",
        "target": ">=2",
        "passed": False,
        "details": {"sha1": 2.0},
    }
    assert (results / "P9.png").read_bytes().startswith(b"\x89PNG")


def test_benchmark_draws_its_own_picture(tmp_path: pathlib.Path) -> None:
    drawn: list[figure.Figure] = []
    run(tmp_path, add("P9", ">= 2", harness.Result({"P9": 1.0}, draw=drawn.append)))
    assert len(drawn) == 1 and (tmp_path / "P9.png").exists()


def test_ids_of_one_run_are_measured_once_and_the_requested_one_is_last(
    tmp_path: pathlib.Path,
) -> None:
    runs: list[int] = []

    targets = {"P1": "<= 1.15", "P1b": "<= 1.02", "P1c": "<= 1.05"}
    entries = {name: harness.Entry("", harness.Target.parse(one)) for name, one in targets.items()}

    known: dict[str, harness.Benchmark] = {}

    @harness.measures(*targets, entries=entries, registry=known)
    def measure(say: harness.Say) -> harness.Result:
        runs.append(1)
        return harness.Result({"P1": 1.1, "P1b": 1.3, "P1c": 1.0})

    done, lines = run(tmp_path, known["P1"], known["P1b"], known=known.values())
    assert done and len(runs) == 1
    assert set(lines[-2:]) == {"P1 1.1 <=1.15 pass", "P1b 1.3 <=1.02 fail"}
    assert lines[-3] == "P1c 1 <=1.05 pass"
    assert {path.name for path in tmp_path.glob("*.json")} == {"P1.json", "P1b.json", "P1c.json"}


def test_missed_target_does_not_fail_the_tool(tmp_path: pathlib.Path) -> None:
    done, lines = run(tmp_path, add("P9", ">= 2", harness.Result({"P9": 0.1})))
    assert done and lines[-1].endswith("fail")


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (harness.CannotRun("this machine has no network namespaces"), "no network namespaces"),
        (ZeroDivisionError(), "see above"),
        (harness.Result({}), "no value for P8"),
        (harness.Result({"P8": (1.0, 2.0)}), "see above"),
    ],
)
def test_benchmark_that_cannot_run_does_not_stop_the_others(
    tmp_path: pathlib.Path, trouble: harness.Result | Exception, reason: str
) -> None:
    broken = add("P8", ">= 2", trouble)
    done, lines = run(tmp_path, broken, add("P9", ">= 2", harness.Result({"P9": 3.0})))
    assert not done
    assert any(line.startswith("P8 could not run") and reason in line for line in lines)
    assert lines[-1] == "P9 3 >=2 pass"
    assert not (tmp_path / "P8.json").exists()


def test_two_benchmarks_cannot_have_one_id() -> None:
    registry: dict[str, harness.Benchmark] = {}
    add("P9", ">= 2", harness.Result({}), registry)
    with pytest.raises(ValueError, match="two benchmarks have the ID P9"):
        add("P9", ">= 2", harness.Result({}), registry)


def test_benchmarks_are_found_and_sorted_by_number() -> None:
    known = list(harness.load_all())
    assert "P9" in known
    assert known == sorted(known, key=harness._natural)
    assert sorted(["P10", "P9", "P1b", "P1"], key=harness._natural) == ["P1", "P1b", "P9", "P10"]


def test_every_catalogue_entry_has_a_benchmark() -> None:
    assert set(harness.load_all()) == set(harness.catalogue())


def test_benchmarks_and_rows_of_their_page_correspond() -> None:
    text = (harness.ROOT / "doc/source/contributor/benchmarks.rst").read_text()
    ids = re.findall(r"^   ([A-Z]\d+\w*|PEERSb?),", text, re.M)
    assert sorted(ids) == sorted(harness.load_all())


BURN = "import time\nwhile time.process_time() < 0.3: pass\n"
PARENT = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {BURN!r}], check=True)
living = subprocess.Popen([sys.executable, "-c", {BURN + "print(flush=True); input()"!r}],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE)
living.stdout.readline()
print(flush=True)
input()
living.communicate(b"\\n")
"""


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[bytes]]:
    """A process with one ended child and one living child; each used 0.3 s."""
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    yield process
    process.communicate(b"\n")


def test_processor_time_counts_living_and_ended_children(parent: subprocess.Popen[bytes]) -> None:
    assert parent.stdout
    parent.stdout.readline()
    assert 0.55 <= harness.cpu_seconds(parent.pid) < 2


def test_processor_time_of_this_process_agrees_with_the_kernel() -> None:
    before = time.process_time()
    assert harness.cpu_seconds(os.getpid()) >= before - 0.05


def test_processor_time_of_a_missing_process_is_an_error() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    with pytest.raises(ProcessLookupError, match=f"there is no process {gone.pid}"):
        harness.cpu_seconds(gone.pid)


def test_command_without_an_id_lists_ids_and_targets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It runs in this process: another one would import every benchmark again, for seconds."""
    assert exit_status_of(monkeypatch) == 0
    assert any("P9" in line and ">=2" in line for line in capsys.readouterr().out.splitlines())


def test_unknown_id_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_status_of(monkeypatch, "P9", "P77") == 2
    assert "no such benchmark: P77 (there are: " in capsys.readouterr().err


def exit_status_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str | int | None:
    """Run ``python -m evaluation.bench`` with arguments."""
    monkeypatch.setattr(sys, "argv", ["evaluation.bench", *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("evaluation.bench", run_name="__main__", alter_sys=False)
    return ended.value.code
