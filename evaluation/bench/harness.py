# SPDX-License-Identifier: Apache-2.0
"""Runs benchmarks and stores their figures: JSON, a picture, and one line each.

A missed target is a result; only a benchmark that cannot run is a failure.  Figures are ratios of
one run where possible, since absolute times depend more on the machine than on acstor.

A benchmark has its title, target and unit in ``evaluation/bench/benchmarks.toml``, and is a
function in a module ``evaluation/bench/<id>_<name>.py``::

    @harness.measures("P9")
    def run(say: harness.Say) -> harness.Result:
        return harness.Result({"P9": 6.1}, details={"sha1": 2.0})

One run may have several ids.  A target may have several parts (``"<= 2, >= 0.6"``); then the
value is a tuple of as many.
"""

import argparse
import dataclasses
import datetime
import functools
import importlib
import json
import operator
import os
import pathlib
import platform
import re
import subprocess
import tomllib
import traceback
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from matplotlib import figure

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULES = "[a-z][0-9]*_*.py"
CATALOGUE = pathlib.Path(__file__).with_name("benchmarks.toml")

Value = float | tuple[float, ...]
Say = Callable[[str], None]
"""Prints a line of progress."""

_WITHOUT_PAPERS = ("--", ":!doc/source/papers", ":!evaluation/papers/results")
"""A published run writes pages and results there meanwhile."""
_OPERATORS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
_CONDITION = re.compile(r"\s*(<=|>=|<|>)\s*([0-9.]+)\s*")


class CannotRun(Exception):
    """The machine lacks a requirement of the benchmark, named by the message."""


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of one run: a value for each of the benchmark's ids, and details.

    :param details: anything that JSON can hold
    :param draw: fills the picture; without it the picture shows the values and their targets
    """

    values: dict[str, Value]
    details: dict[str, Any] = dataclasses.field(default_factory=dict)
    draw: Callable[[figure.Figure], None] | None = None


@dataclasses.dataclass(frozen=True)
class Target:
    """One or more bounds, such as ``>= 2`` or ``<= 2, >= 0.6``.

    >>> Target.parse("<= 2, >= 0.6").is_met((1.4, 0.5))
    False
    >>> str(Target.parse("<= 2, >= 0.6"))
    '<=2,>=0.6'
    """

    bounds: tuple[tuple[str, float], ...]

    @classmethod
    def parse(cls, text: str) -> "Target":
        """Parse a target.

        :raises ValueError: it is not one
        """
        matches = [_CONDITION.fullmatch(part) for part in text.split(",")]
        if not all(matches):
            raise ValueError(f"not a target: {text!r}")
        return cls(tuple((match[1], float(match[2])) for match in matches if match))

    def is_met(self, value: Value) -> bool:
        """Return whether every part of ``value`` is within its bound."""
        parts = _parts(value)
        if len(parts) != len(self.bounds):
            raise ValueError(f"{parts} does not have one part for each bound of {self}")
        return all(
            _OPERATORS[sign](part, bound)
            for part, (sign, bound) in zip(parts, self.bounds, strict=True)
        )

    def __str__(self) -> str:
        return ",".join(f"{sign}{bound:g}" for sign, bound in self.bounds)


@dataclasses.dataclass(frozen=True)
class Entry:
    """A benchmark's entry in the catalogue.

    :param unit: of the value; "times" for a ratio of two figures of one run
    """

    title: str
    target: Target
    unit: str = "times"


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """An id and the function that measures its value (and maybe those of others)."""

    bench_id: str
    entry: Entry
    run: Callable[[Say], Result]

    @property
    def target(self) -> Target:
        """The target of its value."""
        return self.entry.target


_REGISTRY: dict[str, Benchmark] = {}


@functools.cache
def catalogue() -> Mapping[str, Entry]:
    """Return all benchmarks' entries by their ids."""
    rows = tomllib.loads(CATALOGUE.read_text())
    return {
        bench_id: Entry(**{**row, "target": Target.parse(row["target"])})
        for bench_id, row in rows.items()
    }


def bounds(bench_id: str) -> tuple[float, ...]:
    """Return the numbers of a benchmark's target, for pictures."""
    return tuple(bound for _, bound in catalogue()[bench_id].target.bounds)


def measures(
    *bench_ids: str,
    entries: Mapping[str, Entry] | None = None,
    registry: dict[str, Benchmark] = _REGISTRY,
) -> Callable[[Callable[[Say], Result]], Callable[[Say], Result]]:
    """Register the decorated function as the measurement of these benchmarks.

    :param entries: their entries by id; None: the catalogue's
    :param registry: where to register them
    """

    def register(run: Callable[[Say], Result]) -> Callable[[Say], Result]:
        for bench_id in bench_ids:
            if bench_id in registry:
                raise ValueError(f"two benchmarks have the ID {bench_id}")
            entry = (entries or catalogue())[bench_id]
            registry[bench_id] = Benchmark(bench_id, entry, run)
        return run

    return register


def load_all() -> dict[str, Benchmark]:
    """Import all benchmarks of this folder; return them by id, ordered."""
    for path in sorted(pathlib.Path(__file__).parent.glob(MODULES)):
        importlib.import_module(f"evaluation.bench.{path.stem}")
    return dict(sorted(_REGISTRY.items(), key=lambda item: _natural(item[0])))


def add_results_argument(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the option of the folder for the results and the picture of this name."""
    parser.add_argument(
        "--results",
        metavar="DIR",
        type=pathlib.Path,
        default=ROOT / "results",
        help=f"folder for {name}.json and {name}.png (default: results in the checkout)",
    )


def run_benchmarks(
    wanted: Sequence[Benchmark],
    known: Iterable[Benchmark],
    results: pathlib.Path,
    say: Say,
) -> bool:
    """Run each function that ``wanted`` needs once; return whether all could run.

    Unrequested ids of the same run are reported first, so that the last line is a requested one.
    """
    results.mkdir(parents=True, exist_ok=True)
    wanted_ids = {item.bench_id for item in wanted}
    is_complete = True
    for run in dict.fromkeys(item.run for item in wanted):
        family = [item for item in known if item.run is run]
        family.sort(key=lambda item: item.bench_id in wanted_ids)
        is_complete &= _run_family(family, results, say)
    return is_complete


def _run_family(family: list[Benchmark], results: pathlib.Path, say: Say) -> bool:
    """Run the function of these benchmarks, and report each."""
    names = ", ".join(item.bench_id for item in family)
    for item in family:
        say(f"{item.bench_id}: {item.entry.title} (target {item.target} {item.entry.unit})")
    try:
        result = family[0].run(say)
        missing = [item.bench_id for item in family if item.bench_id not in result.values]
        if missing:
            raise CannotRun(f"no value for {', '.join(missing)}")
        for item in family:
            _keep(item, result, results)
        _draw(family, result, results)
    except CannotRun as exc:
        say(f"{names} could not run: {exc}")
        return False
    except Exception:  # a broken benchmark must not stop the others
        traceback.print_exc()
        say(f"{names} could not run: see above")
        return False
    for item in family:
        value = result.values[item.bench_id]
        say(f"{item.bench_id} {_text(value)} {item.target} {_verdict(item, value)}")
    return True


def _keep(item: Benchmark, result: Result, results: pathlib.Path) -> None:
    value = result.values[item.bench_id]
    record = {
        "id": item.bench_id,
        "title": item.entry.title,
        "value": value,
        "unit": item.entry.unit,
        "target": str(item.target),
        "passed": item.target.is_met(value),
        "details": result.details,
        "machine": machine(),
    }
    text = json.dumps(record, indent=2) + "\n"
    (results / f"{item.bench_id}.json").write_text(text)


def _draw(family: list[Benchmark], result: Result, results: pathlib.Path) -> None:
    """Draw one picture for the run and store it under each id."""
    picture = figure.Figure(figsize=(8, 4.5), layout="constrained")
    if result.draw:
        result.draw(picture)
    else:
        _draw_values(picture, family, result)
    for item in family:
        picture.savefig(results / f"{item.bench_id}.png", dpi=120)


def _draw_values(picture: figure.Figure, family: list[Benchmark], result: Result) -> None:
    """Draw each value as a bar with its bound as a line, in axes of its own."""
    all_axes = picture.subplots(1, len(family), squeeze=False)[0]
    for axes, item in zip(all_axes, family, strict=True):
        parts = _parts(result.values[item.bench_id])
        axes.bar(range(len(parts)), parts, color="tab:blue")
        for at, (sign, bound) in enumerate(item.target.bounds):
            axes.hlines(bound, at - 0.5, at + 0.5, color="tab:red", label=f"{sign} {bound:g}")
        axes.set(title=f"{item.bench_id}: {item.entry.title}", ylabel=item.entry.unit, xticks=[])
        axes.legend()


def machine(checkout: pathlib.Path = ROOT) -> dict[str, Any]:
    """Return the environment of a figure: processor, kernel, Python, commit."""
    cpuinfo = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    return {
        "cpu": model[1] if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "commit": _git(checkout, "rev-parse", "HEAD"),
        "has_local_changes": bool(
            _git(checkout, "status", "--porcelain", "--untracked-files=no", *_WITHOUT_PAPERS)
        ),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process and all its descendants so far.

    Ended children count once their parent has waited for them.

    :raises ProcessLookupError: there is no such process
    """
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            # The name in brackets may hold anything; fields are counted after it.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        children.setdefault(int(fields[1]), []).append(int(entry.name))
        ticks[int(entry.name)] = sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    if pid not in ticks:
        raise ProcessLookupError(f"there is no process {pid}")
    family = [pid]
    for member in family:
        family.extend(children.get(member, ()))
    return sum(ticks[member] for member in family) / os.sysconf("SC_CLK_TCK")


def _git(checkout: pathlib.Path, *arguments: str) -> str:
    """Return git's output; "" outside of a repository."""
    try:
        done = subprocess.run(["git", *arguments], cwd=checkout, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


def _parts(value: Value) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (value,)


def _text(value: Value) -> str:
    return ",".join(f"{part:.4g}" for part in _parts(value))


def _verdict(item: Benchmark, value: Value) -> str:
    return "pass" if item.target.is_met(value) else "fail"


def _natural(bench_id: str) -> tuple[str, int, str]:
    """Return a sort key with P9 before P10, and P1 before P1b."""
    letter, number, rest = re.fullmatch(r"([A-Z]+)([0-9]*)(.*)", bench_id).groups()  # type: ignore[union-attr]
    return letter, int(number or 0), rest
