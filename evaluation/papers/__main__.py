# SPDX-License-Identifier: Apache-2.0
"""Compares acstor with the five papers it implements; writes a page for each.

Results are stored case by case: the same command resumes an interrupted run.

Exit status: 0 all ran (whatever the verdicts), 1 a case could not run, 2 wrong usage, 3 results
cannot be stored (disk full) or read, 130 stopped.
"""

import argparse
import pathlib
import signal
import sys
from collections.abc import Sequence

from evaluation.bench import harness
from evaluation.papers import catalogue
from evaluation.papers import experiment
from evaluation.papers import page
from evaluation.papers import runner
from evaluation.papers import store

EXIT_COULD_NOT_RUN = 1
EXIT_CANNOT_KEEP = 3
EXIT_STOPPED = 130
PUBLISHED = harness.ROOT / "doc" / "source" / "papers"
PUBLISHED_RESULTS = harness.ROOT / "evaluation" / "papers" / "results"
PICTURES = "pictures"
RESULTS = "results"


def main() -> int:
    """Run the command and return its exit status."""
    options = _parser().parse_args()
    wanted = [paper for paper in catalogue.PAPERS if options.paper in (paper.key, "all")]
    scale = experiment.Scale.QUICK if options.quick else experiment.Scale.WHOLE
    target = PUBLISHED if options.publish else options.results / scale
    results = PUBLISHED_RESULTS if options.publish else target / RESULTS
    chosen = [
        one
        for paper in wanted
        for one in paper.experiments
        if not options.only or one.key in options.only
    ]
    if options.list:
        for one in chosen:
            cases = one.cases(scale)
            print(f"{one.key:20} {len(cases):3} cases, {_minutes(cases):5.1f} min  {one.title}")
        return 0
    if options.fresh:
        for one in chosen:
            store.path(results, one.key).unlink(missing_ok=True)
    # SIGTERM (timeout, a service manager) must clean up like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        is_complete = options.pages_only or runner.Runner(results, scale, _say).run(chosen)
        for paper in wanted:
            _say(f"{paper.key}: {write(paper, target, results, scale)}")
    except KeyboardInterrupt:
        _say("stopped; the same command resumes with the case that was running")
        return EXIT_STOPPED
    except (runner.NoRoom, store.NoResult, OSError) as e:
        print(f"error: {e}", file=sys.stderr)
        return EXIT_CANNOT_KEEP
    return 0 if is_complete else EXIT_COULD_NOT_RUN


def write(
    paper: experiment.Paper, target: pathlib.Path, results: pathlib.Path, scale: experiment.Scale
) -> pathlib.Path:
    """Draw a paper's pictures, write its page, and return its path."""
    kept = {one.key: store.load(results, one.key, scale) for one in paper.experiments}
    for one in paper.experiments:
        page.draw(one, kept[one.key], target / PICTURES / f"{one.key}.png")
    file = target / f"{paper.key.lower()}.rst"
    target.mkdir(parents=True, exist_ok=True)
    file.write_text(page.text(paper, kept, PICTURES))
    return file


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/paper.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    keys = [paper.key for paper in catalogue.PAPERS]
    parser.add_argument(
        "paper", nargs="?", default="all", choices=[*keys, "all"], help="default: all"
    )
    parser.add_argument("--quick", action="store_true", help="smaller, in 20 minutes for all")
    parser.add_argument("--only", metavar="KEY", action="append", help="run only this experiment")
    parser.add_argument("--fresh", action="store_true", help="delete the results of earlier runs")
    parser.add_argument("--list", action="store_true", help="list experiments and durations")
    parser.add_argument("--pages-only", action="store_true", help="run nothing, rewrite the pages")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--results",
        metavar="DIR",
        type=pathlib.Path,
        default=harness.ROOT / "results" / "papers",
        help="folder for results, pictures and pages (default: results/papers in the checkout)",
    )
    where.add_argument(
        "--publish",
        action="store_true",
        help=f"write to {_name(PUBLISHED)} and {_name(PUBLISHED_RESULTS)}",
    )
    return parser


def _name(folder: pathlib.Path) -> pathlib.Path:
    return folder.relative_to(harness.ROOT)


def _minutes(cases: Sequence[experiment.Case]) -> float:
    return sum(map(runner.alone_s, cases)) / 60


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
