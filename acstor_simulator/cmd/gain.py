# SPDX-License-Identifier: Apache-2.0
"""acstor-simulate gain: estimates a cloud's gain, as a table, JSON and a page."""

import argparse
import dataclasses
import functools
import json
import pathlib
import sys
from collections.abc import Callable

import prettytable
import tqdm

from acstor_common.service import argument_types
from acstor_common.util import atomic_file
from acstor_simulator.gain import gain_estimate
from acstor_simulator.gain import html_report

DEFAULT = gain_estimate.CloudParameters()


def _between(lowest: float, highest: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            amount = float(text)
        except ValueError:
            amount = float("nan")
        if not lowest <= amount <= highest:
            raise ValueError(f"not a number from {lowest:g} to {highest:g}: {text!r}")
        return amount

    return argument_types.argument_type(parse)


_gbit = _between(0.01, 10_000)
_gb = _between(0.01, 10_000)
NUMBERS = {
    "hosts": (argument_types.number_between(1, gain_estimate.MOST_HOSTS), "compute hosts"),
    "racks": (argument_types.number_between(1, 256), "racks of these hosts"),
    "link_gbit": (_gbit, "link of a host, in Gbit/s"),
    "uplink_gbit": (_gbit, "uplinks of a rack, in total, in Gbit/s"),
    "store_gbit": (_gbit, "throughput of Glance and its store, in total, in Gbit/s"),
    "images": (argument_types.number_between(1, 1000), "images that servers boot from"),
    "image_gb": (_gb, "size of an image in Glance, in GB"),
    "data_gb": (
        _gb,
        "size of an image unpacked, without holes, in GB (default: 3.2 times as much)",
    ),
    "boots_a_day": (
        argument_types.number_between(1, 1_000_000),
        "servers that are created in a day",
    ),
    "at_once": (
        argument_types.number_between(1, gain_estimate.MOST_AT_ONCE),
        "servers that are created at once (default: one on each host)",
    ),
    "at_once_images": (
        argument_types.number_between(1, 1000),
        "images of the servers of --at-once",
    ),
    "boot_s": (_between(0.1, 3600), "seconds from power-on to login on a local disk"),
    "boot_mb": (_between(0.1, 4096), "data that a server reads of its image while it boots, in MB"),
    "busy_percent": (_between(0, 95), "share of the links that other traffic uses, in percent"),
    "seed": (argument_types.number_between(0, 1_000_000), "seed of the random numbers"),
}


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    for name, (kind, what) in NUMBERS.items():
        default = getattr(DEFAULT, name)
        shown = "" if default is None else f" (default {default:.4g})"
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=kind, default=default, metavar="N", help=what + shown)
    parser.add_argument(
        "--output", type=pathlib.Path, metavar="FILE", help="file for the report, in HTML"
    )
    parser.add_argument(
        "--picture", type=pathlib.Path, metavar="FILE", help="file for its charts, as PNG"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=functools.partial(_gain, parser))


def _gain(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    parameters = gain_estimate.CloudParameters(**{name: getattr(options, name) for name in NUMBERS})
    try:
        parameters.check_consistency()
        for path in filter(None, (options.output, options.picture)):
            path.parent.joinpath(".").stat()  # fail now, not after the simulation
        results = [_simulate(parameters, policy) for policy in gain_estimate.POLICY_TITLES]
        if options.output is not None:
            with atomic_file.atomic_write(options.output) as file:
                file.write(html_report.make_page(parameters, results).encode())
        if options.picture is not None:
            html_report.draw(results).savefig(options.picture, dpi=80, format="png")
    except gain_estimate.WrongNumbersError as e:
        parser.error(str(e))
    except OSError as e:
        parser.error(
            f"{e.filename or options.output}: {e.strerror}: name a file in an existing "
            "folder that you may write to"
        )
    print(_json(parameters, results) if options.json else _text(parameters, results))


def _simulate(parameters: gain_estimate.CloudParameters, policy: str) -> html_report.StrategyResult:
    name = gain_estimate.POLICY_TITLES[policy]
    with tqdm.tqdm(
        total=parameters.rush_servers,
        desc=name,
        unit=" servers",
        leave=False,
        disable=None,
        file=sys.stderr,
    ) as bar:
        result = gain_estimate.simulate(parameters, policy, lambda booted: bar.update() and None)
    return html_report.StrategyResult(gain_estimate.estimate_gain(parameters, result), result)


def _json(
    parameters: gain_estimate.CloudParameters, results: list[html_report.StrategyResult]
) -> str:
    found = {
        "cloud": dataclasses.asdict(parameters),
        "policies": [dataclasses.asdict(result.estimate) for result in results],
        "cache_size": dataclasses.asdict(gain_estimate.cache_size(parameters)),
    }
    return json.dumps(found, indent=1)


def _text(
    parameters: gain_estimate.CloudParameters, results: list[html_report.StrategyResult]
) -> str:
    table = prettytable.PrettyTable(
        ["", *(gain_estimate.POLICY_TITLES[result.estimate.policy] for result in results)]
    )
    table.align = "r"
    table.align[""] = "l"
    for name, cells in html_report.result_rows(results):
        table.add_row([name, *cells])
    return "\n".join(
        [*html_report.cloud_text(parameters), str(table), html_report.cache_size_text(parameters)]
    )
