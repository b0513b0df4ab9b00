# SPDX-License-Identifier: Apache-2.0
"""How well their unit tests cover the cores: branches, and mutants.

    python -m tests.lab.core_tests coverage                     # fails below 95 % of a module
    python -m tests.lab.core_tests mutants --sample 300 --seed 1 --only remap hedge

``coverage`` measures the packages that decide without I/O by their own unit tests.  ``mutants``
lets mutmut change modules of both ``core`` packages, in a copy, and counts the mutants that the
modules' own test files detect; it lists the others.  Both tools get a folder of their own.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "core-tests"
TOOLS = ("coverage==7.17.5", "mutmut==3.8.1")
LEAST = 95.0
CORES = ("acstor_agent/core", "acstor_agent/engine", "acstor_decision/core", "acstor_policies")
TESTS = (
    *("tests/unit/agent/core", "tests/unit/agent/engine", "tests/unit/decision/core"),
    "tests/unit/policies",
)
MUTATED = ("acstor_agent/core", "acstor_decision/core")
MUTANTS_TESTS = "tests/unit/agent/core", "tests/unit/decision/core"
EXCLUDED = ("if TYPE_CHECKING:", r"\.\.\.$", r"class .*Protocol\):")
MOST_BYTES = 4 << 30  # address space of a mutant, whose loop may never end
NOTHING = "none at all"
"""Matches no mutant: mutmut only generates them, and learns which test calls which function."""
SETTINGS = """
[tool.mutmut]
source_paths = {sources}
only_mutate = {modules}
also_copy = {copied}
pytest_add_cli_args = ["-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
pytest_add_cli_args_test_selection = {tests}
timeout_multiplier = 100.0
timeout_constant = 60.0
track_dependencies = false
use_git_change_detection = false
"""


def tool(name: str) -> str:
    """Return the path of a tool; install it first if needed."""
    folder = CACHE / "venv"
    if not (folder / "bin" / name).exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        (own,) = folder.glob("lib/python*/site-packages")
        (own / "checkout.pth").write_text("\n".join(p for p in sys.path if "site-packages" in p))
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *TOOLS]
        subprocess.run(pip, check=True)
    return str(folder / "bin" / name)


def coverage() -> int:
    """Print the covered branches and lines of each module; return 1 if one has too few."""
    CACHE.mkdir(parents=True, exist_ok=True)
    rules = CACHE / "coveragerc"
    lines = "".join(f"\n    {line}" for line in EXCLUDED)
    sources = "".join(f"\n    {core}" for core in CORES)
    report = f"[report]\nexclude_also ={lines}\n"
    rules.write_text(f"[run]\nbranch = True\ndata_file = {CACHE}/data\nsource ={sources}\n{report}")
    run, its = tool("coverage"), f"--rcfile={rules}"
    tests = [*TESTS, *CORES, "--doctest-modules"]
    subprocess.run([run, "run", its, "-m", "pytest", "-n", "0", *tests], check=True, cwd=ROOT)
    subprocess.run([run, "json", its, "--quiet", "-o", str(CACHE / "found.json")], check=True)
    found = json.loads((CACHE / "found.json").read_text())
    shares = {name: file["summary"]["percent_covered"] for name, file in found["files"].items()}
    for name, share in sorted(shares.items(), key=lambda item: -item[1]):
        missing = found["files"][name]
        print(f"{share:6.1f} % {name}", missing["missing_lines"], missing["missing_branches"])
    few = [name for name, share in shares.items() if share < LEAST]
    totals = found["totals"]
    print(
        f"{len(shares)} modules: {totals['percent_covered']:.1f} % in all, "
        f"{totals['covered_branches']} of {totals['num_branches']} branches; "
        f"below {LEAST:g} %: {few or 'none'}"
    )
    return 1 if few else 0


def mutants(sample: int, seed: int, only: Sequence[str]) -> int:
    """Print the share of a random sample of mutants that tests detect, and the others.

    :param only: names of modules; none: all that have a test file
    """
    tests = _test_files()
    copy = _copy({name: tests[name] for name in only} if only else tests)
    subprocess.run([tool("mutmut"), "run", NOTHING], cwd=copy, check=False, capture_output=True)
    known = sorted(_results(copy))
    chosen = random.Random(seed).sample(known, min(sample, len(known)))
    run = ["prlimit", f"--as={MOST_BYTES}", tool("mutmut"), "run", "--max-children", "1", *chosen]
    subprocess.run(run, cwd=copy, check=True)
    results = _results(copy)
    tried = [name for name in chosen if results[name] is not None]
    left = [name for name in tried if results[name] in (0, 5, 33)]
    for name in left:
        done = subprocess.run(
            [tool("mutmut"), "show", name], cwd=copy, capture_output=True, text=True, check=False
        )
        print(name, done.stdout, sep="\n")
    share = 100 * (1 - len(left) / max(len(tried), 1))
    print(f"{len(tried)} of {len(known)} mutants tried: tests detect {share:.1f} %")
    return 0


def _test_files() -> dict[str, str]:
    """Return the test file of each mutated module that has one."""
    tests = {path.stem: path for folder in MUTANTS_TESTS for path in (ROOT / folder).rglob("*.py")}
    modules = [path.stem for folder in MUTATED for path in (ROOT / folder).rglob("*.py")]
    named = ((module, tests.get(f"test_{module}")) for module in modules)
    return {module: str(path.relative_to(ROOT)) for module, path in named if path is not None}


def _copy(tests: Mapping[str, str]) -> pathlib.Path:
    """Copy the code under test, and its tests by module."""
    copy = CACHE / "mutants"
    shutil.rmtree(copy, ignore_errors=True)
    packages = sorted(path.parent.name for path in ROOT.glob("acstor_*/__init__.py"))
    copied = [*packages, "doc"]  # one test reads a page
    listed = ["git", "ls-files", *copied, "tests", "pyproject.toml", "setup.cfg"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(_is_needed, names.split()):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    shown = {
        "sources": MUTATED,
        "modules": [f"*/{module}.py" for module in tests],
        "copied": copied,
        "tests": list(tests.values()),
    }
    more = SETTINGS.format(**{key: json.dumps(value) for key, value in shown.items()})
    tomllib.loads(more)
    with (copy / "pyproject.toml").open("a") as file:
        file.write(more)
    return copy


def _is_needed(name: str) -> bool:
    """Return whether unit tests of the cores need a file of the checkout."""
    parts = pathlib.PurePath(name).parts
    if parts[:2] != ("tests", "unit"):
        return parts[:2] != ("tests", "functional")
    return len(parts) < 4 or name.startswith(MUTANTS_TESTS)


def _results(copy: pathlib.Path) -> dict[str, int | None]:
    """Return pytest's exit status for each mutant; None: not tried."""
    found: dict[str, int | None] = {}
    for path in (copy / "mutants").rglob("*.meta"):
        found |= json.loads(path.read_text())["exit_code_by_key"]
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.core_tests")
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("coverage", help="branch coverage")
    part = parts.add_parser("mutants", help="mutation score")
    part.add_argument("--sample", type=int, default=300, help="so many mutants (300)")
    part.add_argument("--seed", type=int, default=1, help="of the sample (1)")
    part.add_argument("--only", nargs="*", default=[], help="modules (all with a test file)")
    options = parser.parse_args(argv)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    if options.part == "coverage":
        return coverage()
    return mutants(options.sample, options.seed, options.only)


if __name__ == "__main__":
    sys.exit(main())
