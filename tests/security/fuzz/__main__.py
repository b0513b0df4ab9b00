# SPDX-License-Identifier: Apache-2.0
"""Fuzz the parsers of untrusted bytes for as long as you like.

Without a target the time is divided among all of them.  Each finding is written to a file, and the
command to repeat it is printed; "--keep" of a fixed finding makes it a regression test.

"""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import traceback

from tests.security.fuzz import corpus
from tests.security.fuzz import targets
from tests.security.fuzz.target import Target

ROOT = pathlib.Path(__file__).resolve().parents[3]
FINDINGS = ROOT / ".cache" / "fuzz"
KEPT_BYTES, GROWN = 2048, 12
"""Limits of inputs added to the corpus: length and number; larger ones are kept by hand."""
COMMAND = "python -m tests.security.fuzz"


def main() -> int:
    """Return the exit status: 1 if there is a finding."""
    options = _arguments()
    names = options.target or sorted(targets.BY_NAME)
    if options.input:
        return _try_again(targets.BY_NAME[names[0]], options.input, options.keep)
    seconds = max(1, options.seconds // len(names))
    failed = [name for name in names if not _fuzz(name, seconds, options.seed, options.grow)]
    print(f"{len(names) - len(failed)} of {len(names)} targets stood {seconds} s each")
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for all targets together")
    parser.add_argument("--seed", type=int, default=1, help="the same seed tries the same inputs")
    parser.add_argument(
        "--target", action="append", choices=sorted(targets.BY_NAME), help="only this one"
    )
    parser.add_argument(
        "--grow", action="store_true", help="keep inputs that reach code which no kept one reaches"
    )
    parser.add_argument("--keep", action="store_true", help="keep INPUT in the corpus")
    parser.add_argument("input", nargs="?", type=pathlib.Path, help="try this file alone")
    options = parser.parse_args()
    if options.input and len(options.target or ()) != 1:
        parser.error("a file is tried with one --target")
    return options


def _try_again(target: Target, path: pathlib.Path, is_kept: bool) -> int:
    data = path.read_bytes()
    try:
        is_taken = target.try_measured(data)
    except Exception:
        traceback.print_exc()
        return 1
    print(f"{target.name}: {'taken' if is_taken else 'refused, as it should be'}")
    if is_kept:
        _keep(target, data)
    return 0


def _keep(target: Target, data: bytes) -> None:
    folder = corpus.FOLDER / target.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / corpus.name_of(data)).write_bytes(data)


def _fuzz(name: str, seconds: int, seed: int, grows: bool) -> bool:
    """Run libFuzzer on one target; return whether it passed."""
    target = targets.BY_NAME[name]
    FINDINGS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        reached, begun = pathlib.Path(folder, "reached"), pathlib.Path(folder, "begun")
        reached.mkdir()
        begun.mkdir()
        for data in corpus.inputs(target):
            (begun / corpus.name_of(data)).write_bytes(data)
        done = subprocess.run(
            [
                *(sys.executable, "-m", "tests.security.fuzz.libfuzzer", name),
                *(f"-max_total_time={seconds}", f"-seed={seed}", f"-max_len={target.max_bytes}"),
                *("-timeout=30", "-rss_limit_mb=4096", "-verbosity=0", "-print_final_stats=1"),
                *(f"-artifact_prefix={FINDINGS}/{name}-", str(reached), str(begun)),
            ],
            cwd=ROOT,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        if grows and done.returncode == 0:
            _grow(target, reached)
    return _say(name, done)


def _say(name: str, done: "subprocess.CompletedProcess[str]") -> bool:
    lines = done.stdout.splitlines()
    tries = [line.split()[-1] for line in lines if line.startswith("stat::number_of_executed")]
    if done.returncode == 0:
        print(f"{name}: {tries[0] if tries else '?'} inputs, nothing found", flush=True)
        return True
    print(done.stdout[-6000:])
    found = [line.split()[-1] for line in lines if "Test unit written to" in line]
    for path in found:
        print(f"{name}: again: {COMMAND} --target {name} {path}", flush=True)
    return False


def _grow(target: Target, reached: pathlib.Path) -> None:
    """Keep the smallest inputs that reached new code."""
    found = sorted((path.read_bytes() for path in reached.iterdir()), key=len)
    for data in found[:GROWN]:
        if len(data) <= KEPT_BYTES:
            _keep(target, data)


if __name__ == "__main__":
    sys.exit(main())
