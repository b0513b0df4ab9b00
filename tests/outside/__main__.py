# SPDX-License-Identifier: Apache-2.0
"""Runs tests of other projects against acstor, and prints different answers.

``samples``: QEMU's sample images.  ``iotests``: the images that QEMU's iotests make.  ``fuzz``:
random and damaged images, compared with qemu-img.  ``inspector``: oslo.utils' tests of its format
inspector.  ``readers``: acstor's qcow2 files, read by other programs than QEMU.  ``rest``:
schemathesis on the REST API, as each role.  ``fsx`` and ``fio``: operations on writable disks of
the mirror, while workers and supervisors are killed and, under fio, the host loses power.
``overlay``: both on guests' disks over the mirror, while QEMU is killed, too.  ``tempest`` and
``rally``: tests of OpenStack on the lab's, with acstor and without.
"""

import argparse
import collections
import logging
import pathlib
import sys
import time
from collections.abc import Callable
from collections.abc import Iterable

from tests.outside import clouds
from tests.outside import crash_parts
from tests.outside import crash_passes
from tests.outside import fuzz
from tests.outside import inspector
from tests.outside import iotests
from tests.outside import judge
from tests.outside import qemu_source
from tests.outside import reader_tests
from tests.outside import rest_roles
from tests.outside import sample_images

COMMAND = "tools/outside-tests.sh"
PARTS = (
    *("samples", "iotests", "fuzz", "inspector", "readers", "rest", "fsx", "fio", "overlay"),
    *("tempest", "rally"),
)
KEPT = qemu_source.CACHE / "found"
_PROGRESS = 1000  # images
_WIDTHS = (44, 40, 40)


def main() -> int:
    """Run the parts; return 1 if one failed."""
    options = _arguments()
    logging.disable(logging.CRITICAL)  # oslo.utils warns of each unsafe image
    run = {
        "samples": lambda: run_samples(),
        "iotests": lambda: run_iotests(options),
        "fuzz": lambda: run_fuzz(options),
        "inspector": lambda: run_inspector(),
        "readers": lambda: run_readers(),
        "rest": lambda: run_rest(options),
        "fsx": lambda: run_crashes("fsx", crash_parts.run_fsx, options),
        "fio": lambda: run_crashes("fio", crash_parts.run_fio, options),
        "overlay": lambda: run_crashes("overlay", crash_parts.run_overlay, options),
        "tempest": lambda: run_on_clouds(clouds.run_tempest, options),
        "rally": lambda: run_on_clouds(clouds.run_rally, options),
    }
    failed = [part for part in options.part or PARTS if not run[part]()]
    print(f"failed: {', '.join(failed)}" if failed else "nothing is answered otherwise")
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("part", nargs="*", choices=PARTS, help="by default all")
    parser.add_argument("--images", type=int, default=10_000, help="of the fuzzer")
    parser.add_argument("--seed", type=int, default=1, help="the same seed makes the same images")
    parser.add_argument("--first", type=int, default=0, help="number of the fuzzer's first image")
    parser.add_argument("--examples", type=int, default=10, help="of each REST operation")
    parser.add_argument("--operations", type=int, default=1_000_000, help="of fsx and fio")
    parser.add_argument("--kills", type=int, default=100, help="of processes while these run")
    parser.add_argument("--minutes", type=float, default=60, help="longest time of such a part")
    parser.add_argument("--match", help="regular expression of Tempest's tests or of scenarios")
    parser.add_argument("--resume", action="store_true", help="run only those without a result")
    parser.add_argument("--test", action="append", help="run this iotest alone")
    parser.add_argument("--format", action="append", choices=iotests.FORMATS, help="of iotests")
    return parser.parse_args()


def run_samples() -> bool:
    """Judge QEMU's sample images."""
    return _show("samples", sample_images.judge_samples(qemu_source.find_iotests()), True)


def run_iotests(options: argparse.Namespace) -> bool:
    """Judge the images of iotests."""
    folder = qemu_source.find_iotests()
    judged = [
        _run_iotests(folder, name, options.test) for name in options.format or iotests.FORMATS
    ]
    return all(judged)


def _run_iotests(folder: pathlib.Path, image_format: str, names: list[str] | None) -> bool:
    chosen, every = iotests.choose_tests(folder, image_format)
    statuses: collections.Counter[str] = collections.Counter()
    rows = []
    for name in names or chosen:
        result = iotests.run_test(folder, name, image_format, KEPT)
        statuses[result.status] += 1
        verdicts = collections.Counter(row.verdict.value for row in result.rows)
        print(f"{image_format} {name}: {result.status}; {_counted(verdicts)}", flush=True)
        rows += result.rows
    print(f"{image_format}: {statuses.total()} of {every} iotests run: {_counted(statuses)}")
    return _show(image_format, rows, False)


def run_fuzz(options: argparse.Namespace) -> bool:
    """Judge random images."""
    print(f"fuzz: seed {options.seed}, images {options.first} and {options.images - 1} more")
    stop_s = time.monotonic() + options.minutes * 60
    images = fuzz.judge_images(options.seed, options.first, options.images, stop_s, KEPT)
    return _show("fuzz", images, False)


def run_inspector() -> bool:
    """Run oslo.utils' tests of its inspector."""
    result = inspector.run_tests()
    print(
        f"inspector: {result.tests} tests, {len(result.failures)} failed, {result.images} images, "
        f"{result.refused} refused by Glance; acstor accepts of these: {len(result.milder)}"
    )
    for line in (*result.failures, *result.milder):
        print(f"  {line}")
    return not result.failures and not result.milder and result.refused > 0


def run_readers() -> bool:
    """Read acstor's qcow2 files with other programs."""
    found = reader_tests.run_tests()
    for kind, counts in found.items():
        print(f"readers: {kind}: {_counted(counts)}")
    return all(counts["imago"] for counts in found.values())


def run_rest(options: argparse.Namespace) -> bool:
    """Test the REST API by schemathesis, as each role."""
    is_good = True
    for verdict in rest_roles.run_roles(options.examples, options.seed):
        counts = ", ".join(f"{n} of {status}" for status, n in sorted(verdict.statuses.items()))
        print(f"rest: {verdict.role}: {verdict.statuses.total()} responses: {counts}", flush=True)
        for failure in verdict.failures:
            print(f"  {failure}")
        is_good = is_good and not verdict.failures and verdict.statuses.total() > 0
    return is_good


def run_crashes(
    part: str,
    run: Callable[[crash_passes.Goal], crash_passes.Tally],
    options: argparse.Namespace,
) -> bool:
    """Run programs on disks while processes are killed."""
    longest_s = options.minutes * 60
    goal = crash_passes.Goal(options.operations, options.kills, options.seed, longest_s)
    found = run(goal)
    print(f"{part}: {found.line()}", flush=True)
    return not found.error


def run_on_clouds(
    run: Callable[[str | None, float, bool], bool], options: argparse.Namespace
) -> bool:
    """Run tests of OpenStack on both clouds of the lab."""
    return run(options.match, options.minutes * 60, options.resume)


def _show(part: str, rows: Iterable[judge.Row], is_whole: bool) -> bool:
    """Print a table, or only faults and reasons of refusals; return if all is right."""
    verdicts: collections.Counter[str] = collections.Counter()
    reasons: collections.Counter[str] = collections.Counter()
    is_good = True
    for row in rows:
        verdicts[row.verdict.value] += 1
        if verdicts.total() % _PROGRESS == 0:
            print(f"{part}: {verdicts.total()} images: {_counted(verdicts)}", flush=True)
        is_good = is_good and not row.verdict.is_fault
        if row.verdict is judge.Verdict.STRICTER:
            reasons[row.acstor.partition(":")[0]] += 1
        if is_whole or row.verdict.is_fault:
            _print_row(row, is_whole)
    for reason, count in reasons.most_common():
        print(f"{part}: only acstor refuses {count}: {reason}")
    print(f"{part}: {verdicts.total()} images: {_counted(verdicts)}", flush=True)
    return is_good and verdicts.total() > 0


def _print_row(row: judge.Row, is_cut: bool) -> None:
    cells = [row.image, row.qemu or "serves it", row.acstor or "serves it"]
    if is_cut:
        cells = [f"{cell:{width}.{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)]
    print(" | ".join((*cells, row.verdict.value)), flush=True)


def _counted(counter: "collections.Counter[str]") -> str:
    return ", ".join(f"{count} {name}" for name, count in counter.most_common()) or "no images"


if __name__ == "__main__":
    sys.exit(main())
