# SPDX-License-Identifier: Apache-2.0
"""Constants that a test changes in a separate process."""

import ast
import importlib
import os
import pathlib
import subprocess
from collections.abc import Iterator

import pytest

from acstor_common.util import token_buckets
from tests.lab import tuned

ROOT = pathlib.Path(__file__).resolve().parents[3]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
NAMES = [value for name, value in vars(tuned).items() if name.isupper() and "." in value]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_belongs_to_a_constant_of_the_product(name: str) -> None:
    module, _, constant = name.rpartition(".")
    value = getattr(importlib.import_module(module), constant)
    assert isinstance(value, int | float | str | token_buckets.Rate)


COMMAND = """
import sys

from acstor_glance.prepare import plan

def main():
    print(plan.RETRY_FIRST_S, *sys.argv)
    return 3
"""


def test_command_runs_with_the_changed_constants(tmp_path: pathlib.Path) -> None:
    (tmp_path / "shown.py").write_text(COMMAND)
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [*tuned.argv("shown", {tuned.RETRY_FIRST_S: 7}), "--option", "x"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "7 shown --option x\n"), done.stderr


def test_unknown_constant_ends_the_command() -> None:
    argv = tuned.argv("acstor_agent.cmd.ctl", {"acstor_glance.prepare.plan.NO_SUCH_THING": 7})
    done = subprocess.run([*argv, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "NO_SUCH_THING" in done.stderr


def test_changed_named_tuple_keeps_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    module, _, constant = tuned.HANDSHAKES.rpartition(".")
    here = importlib.import_module(module)
    monkeypatch.setattr(here, constant, token_buckets.Rate(per_s=1.0, burst=2.0))
    tuned.change({tuned.HANDSHAKES: (3.0, 4.0)})
    assert getattr(here, constant) == token_buckets.Rate(per_s=3.0, burst=4.0)
    assert isinstance(getattr(here, constant), token_buckets.Rate)


def test_changed_constant_keeps_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    module, _, constant = tuned.BUILD_LONGEST_S.rpartition(".")
    here = importlib.import_module(module)
    monkeypatch.setattr(here, constant, 300.0)
    tuned.change({tuned.BUILD_LONGEST_S: 7})
    changed = getattr(here, constant)
    assert changed == 7.0 and isinstance(changed, float)


def read_at_import(node: ast.AST) -> Iterator[ast.Name | ast.Attribute]:
    """Yield the names that the import of a module reads: those outside functions, and defaults."""
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
        yield node
    inside: Iterator[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, FUNCTIONS):
        inside = (default for default in (*node.args.defaults, *node.args.kw_defaults) if default)
    for child in inside:
        yield from read_at_import(child)


def fixed_at_import(source: str, module: str) -> list[str]:
    """Return the changeable constants whose values the import of a module copies."""
    tree = ast.parse(source)
    imported = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    found = []
    for node in read_at_import(tree):
        if isinstance(node, ast.Name):
            name = imported.get(node.id, f"{module}.{node.id}")
        else:
            first, _, rest = ast.unparse(node).partition(".")
            name = f"{imported.get(first, first)}.{rest}"
        found += [name] if name in NAMES else []
    return found


def test_changeable_constants_are_not_copied_at_import() -> None:
    fixed = {}
    for path in sorted(ROOT.glob("acstor_*/**/*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if found := fixed_at_import(path.read_text(), module):
            fixed[module] = found
    assert fixed == {}


@pytest.mark.parametrize(
    "copy",
    [
        "def f(first_s=plan.RETRY_FIRST_S): ...",
        "async def f(*, first_s=plan.RETRY_FIRST_S): ...",
        "class Limits:\n    first_s: float = 2 * plan.RETRY_FIRST_S",
        "class C:\n    def f(self, first_s=plan.RETRY_FIRST_S): ...",
        "TWICE_S = 2 * plan.RETRY_FIRST_S",
        "f = lambda first_s=plan.RETRY_FIRST_S: first_s",
    ],
)
def test_every_kind_of_copy_at_import_is_detected(copy: str) -> None:
    start = "from acstor_glance.prepare import plan\n"
    assert fixed_at_import(start + copy, "m") == [tuned.RETRY_FIRST_S]
    own = copy.replace("plan.", "")
    assert fixed_at_import(own, "acstor_glance.prepare.plan") == [tuned.RETRY_FIRST_S]
    assert fixed_at_import(f"{start}f = lambda: plan.RETRY_FIRST_S", "m") == []
