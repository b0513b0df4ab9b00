# SPDX-License-Identifier: Apache-2.0
"""acstor-simulate: simulates boots on a cloud of any size.

Results go to standard output, progress to standard error.  Exit status 130: stopped by Ctrl-C.
"""

import argparse
import concurrent.futures
import dataclasses
import functools
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import prettytable
import tqdm

from acstor_common.service import argument_types
from acstor_common.service import console_script
from acstor_simulator import paper_figures
from acstor_simulator import simulation
from acstor_simulator.cmd import gain
from acstor_simulator.model import topology

MB = 1e6
EXIT_STOPPED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = make_parser().parse_args(argv)
    try:
        options.run(options)
    except KeyboardInterrupt:
        print("acstor-simulate: stopped", file=sys.stderr)
        return EXIT_STOPPED
    except OSError as e:
        print(f"acstor-simulate: {console_script.error_text(e)}", file=sys.stderr)
        return 1
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="acstor-simulate",
        description="Boot guests on a simulated cloud under traffic, with and without acstor.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    gain.add(commands.add_parser("gain", help="estimate the gain for a cloud of your size"))
    compare = commands.add_parser("compare", help="compare the policies on one cloud")
    _add_cloud(compare)
    compare.set_defaults(run=_compare)
    figure = commands.add_parser("figure", help="reproduce a figure of the ACStor paper")
    figure.add_argument(
        "number", choices=[*paper_figures.EXPERIMENTS], help="number of the figure, or table-1"
    )
    figure.add_argument(
        "--output", type=pathlib.Path, default=pathlib.Path(), help="folder for picture and JSON"
    )
    figure.set_defaults(run=_figure)
    return parser


def _add_cloud(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--pods", type=_count, default=4, help="aggregate switches (default 4)")
    add("--racks", type=_count, default=8, help="racks of a pod (default 8)")
    add("--rack-hosts", type=_count, default=8, help="hosts of a rack (default 8)")
    add("--guests", type=_count, help="guests that boot at once (default: one a host)")
    add("--images", type=_count, default=5, help="different images (default 5)")
    add("--chunks", type=_count, default=976, help="chunks of 64 KiB that a boot reads")
    add(
        "--mean",
        type=_amount,
        default=20.0,
        metavar="MB/S",
        help="other traffic of a host, in and out (default 20)",
    )
    add("--cv", type=_amount, default=0.8, help="its coefficient of variation over the hosts")
    add("--partners", type=_count, default=8, help="hosts that each host talks to")
    add("--reach", type=int, choices=(1, 3, 5), default=5, help="switches to the farthest partner")
    add("--seed", type=int, default=1, help="seed of the random numbers (default: 1)")
    add(
        "--policy",
        action="append",
        choices=[*simulation.POLICIES],
        help="may be repeated (default: all)",
    )
    add("--json", action="store_true", help="print JSON instead of a table")


def _parse_amount(text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = -1.0
    if not 0 <= amount <= 1e6:
        raise ValueError(f"not a number from 0 to 1000000: {text!r}")
    return amount


_count = argument_types.number_between(1, 1_000_000)
_amount = argument_types.argument_type(_parse_amount)


def _scenario(options: argparse.Namespace) -> simulation.Scenario:
    shape = topology.Shape(options.pods, options.racks, options.rack_hosts)
    return simulation.Scenario(
        shape,
        options.guests or shape.host_count,
        options.images,
        options.mean * MB,
        options.cv,
        options.partners,
        options.reach,
        options.chunks,
        seed=options.seed,
    )


def _booted(bar: tqdm.tqdm, _: int) -> None:
    bar.update()


def _compare(options: argparse.Namespace) -> None:
    scenario = _scenario(options)
    results = [_simulate(scenario, policy) for policy in options.policy or simulation.POLICIES]
    if options.json:
        print(json.dumps({"scenario": dataclasses.asdict(scenario), "results": results}, indent=1))
    else:
        print(_table(results))


def _simulate(scenario: simulation.Scenario, policy: str) -> dict[str, Any]:
    began_s = time.perf_counter()
    with tqdm.tqdm(
        total=scenario.guests, desc=policy, unit=" guests", leave=False, disable=None
    ) as bar:
        result = simulation.simulate(scenario, policy, functools.partial(_booted, bar))
    took_s = time.perf_counter() - began_s
    return dataclasses.asdict(result) | {"mean_boot_s": result.mean_boot_s, "took_s": took_s}


def _table(results: Sequence[dict[str, Any]]) -> prettytable.PrettyTable:
    columns: dict[str, Callable[[dict[str, Any]], object]] = {
        "policy": lambda row: row["policy"],
        "mean boot, s": lambda row: f"{row['mean_boot_s']:.1f}",
        "slowest, s": lambda row: f"{max(row['boot_s'], default=float('nan')):.1f}",
        "not booted": lambda row: row["unbooted"],
        "from storage": lambda row: row["storage_chunks"],
        "from peers": lambda row: row["peer_chunks"],
        "remaps": lambda row: row["remaps"],
    }
    table = prettytable.PrettyTable(list(columns))
    table.add_rows([[cell(row) for cell in columns.values()] for row in results])
    return table


def _run(case: paper_figures.Case) -> simulation.Result:
    return simulation.simulate(case.scenario, case.policy)


def _figure(options: argparse.Namespace) -> None:
    number = options.number
    cases = paper_figures.EXPERIMENTS[number].make_cases()
    options.output.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        runs = tqdm.tqdm(pool.map(_run, cases), total=len(cases), unit=" runs", disable=None)
        results = list(zip(cases, runs, strict=True))
    name = options.output / f"simulated-{number if number[0] == 't' else f'figure-{number}'}"
    points = [paper_figures.point(number, *found) for found in results]
    paper_figures.draw(number, points).savefig(name.with_suffix(".png"), dpi=100)
    name.with_suffix(".json").write_text(
        json.dumps([paper_figures.record(*found) for found in results], indent=1)
    )
    print(name.with_suffix(".png"))


if __name__ == "__main__":
    sys.exit(main())
