# SPDX-License-Identifier: Apache-2.0
"""``python -m evaluation.bench ID...``: run benchmarks; without an ID, list them.

Exit status: 0 all ran, with or without missed targets; 1 one could not run; 2 wrong usage;
130 stopped.
"""

import argparse
import functools
import os
import sys

import prettytable

from evaluation.bench import harness

EXIT_COULD_NOT_RUN = 1
EXIT_STOPPED = 130


def main() -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(prog="tools/bench.sh", description=__doc__)
    parser.add_argument("ids", metavar="ID", nargs="*", help="a benchmark, such as P9, or all")
    harness.add_results_argument(parser, "ID")
    parser.add_argument("--turns", type=int, help="of each measurement, instead of its own number")
    parser.add_argument("--quick", action="store_true", help="PEERS: few cells, in 20 minutes")
    parser.add_argument(
        "--resume", action="store_true", help="PEERS: only what former runs did not measure"
    )
    options = parser.parse_args()
    os.environ["ACSTOR_BENCH_RESULTS"] = str(options.results.absolute())
    if options.resume:
        os.environ["ACSTOR_BENCH_RESUME"] = "1"
    if options.turns:
        os.environ["ACSTOR_BENCH_TURNS"] = str(options.turns)
    if options.quick:
        os.environ["ACSTOR_BENCH_QUICK"] = "1"
    known = harness.load_all()
    unknown = [name for name in options.ids if name not in known and name != "all"]
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)} (there are: {', '.join(known)})")
    if not options.ids:
        print(listing(known))
        return 0
    names = list(known) if "all" in options.ids else options.ids
    say = functools.partial(print, flush=True)
    try:
        wanted = [known[name] for name in names]
        complete = harness.run_benchmarks(wanted, known.values(), options.results, say)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return EXIT_STOPPED
    return 0 if complete else EXIT_COULD_NOT_RUN


def listing(known: dict[str, harness.Benchmark]) -> str:
    """Return the table of all benchmarks."""
    table = prettytable.PrettyTable(["ID", "Benchmark", "Target", "Unit"], align="l")
    for item in known.values():
        table.add_row([item.bench_id, item.entry.title, item.target, item.entry.unit])
    return table.get_string()


if __name__ == "__main__":
    sys.exit(main())
