# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.lab.scorecard``: measures the code and its documents.

Prints each figure with its value of 2026-11-25 and its target.  It reads the tree with
``ast`` and ``tokenize`` and imports nothing of it.
"""

import argparse
import ast
import collections
import io
import itertools
import json
import pathlib
import re
import statistics
import sys
import tokenize
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple

import prettytable

ROOT = pathlib.Path(__file__).resolve().parents[2]
BEFORE_ON = "2026-11-25"
LONG_LINES, MANY_PARAMETERS, MANY_MODULES, MANY_NAMESAKES = 40, 8, 15, 2
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
PARTS = ("user", "install", "admin", "contributor")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef
BEFORE: dict[str, tuple[float | None, float | None]] = {
    "code lines": (58027, 45000),
    "comment and docstring lines": (17700, 11000),
    "function lines, median": (7, None),
    "function lines, 90th percentile": (18, None),
    "function lines, longest": (183, 40),
    "functions above 40 lines": (24, 0),
    "largest file, lines": (454, 400),
    "largest __init__, lines": (183, 60),
    "constructors above 8 parameters": (11, 0),
    "Callable parameters of constructors": (146, 40),
    "own options": (112, 90),
    "numeric constants of modules": (1287, None),
    "patches of constants in tests": (221, 20),
    "underscore import aliases": (242, 20),
    "folders above 15 modules": (10, 0),
    "modules in the largest folder": (62, 15),
    "one-word public methods, %": (50, 25),
    "class names in more than 2 modules": (53, 5),
    "files with popitem(last=False)": (33, 1),
    "words in user": (3629, 4000),
    "words in install": (3554, 4000),
    "words in admin": (57000, 22000),
    "words in contributor": (51000, 15000),
    "glossary entries": (90, 25),
    "release notes": (207, 1),
    "migrations": (12, 1),
}
"""(value on ``BEFORE_ON``, target), by measure; None: there is none.

The value is that of an audit where it has one, else this command's on the same tree (folders,
words of user and install).
"""
REASONS = {
    "code lines": "what came after the audit (scheduling by cached images, grants, tracing, the "
    "status page, Cinder volumes, boot profiles, bounds on work) is more than what could go",
    "folders above 15 modules": "these have 15 modules, and __init__.py",
    "modules in the largest folder": "15 modules, and __init__.py",
    "files with popitem(last=False)": "beside the table of recently used entries: queues, and "
    "one table that is limited by bytes",
}
"""Why a target is missed."""
PACKAGES_BEFORE = {
    "acstor_agent": (26711, 360, 7860),
    "acstor_checkpoint": (4283, 54, 1320),
    "acstor_common": (5853, 91, 2480),
    "acstor_decision": (6639, 100, 1704),
    "acstor_glance": (8475, 106, 2045),
    "acstor_nova": (2496, 33, 601),
    "acstor_osc": (1328, 18, 314),
    "acstor_simulator": (2242, 29, 585),
}
"""Lines of code, comments and docstrings on that day."""


class Module(NamedTuple):
    """A parsed Python file."""

    path: pathlib.Path
    text: str
    tree: ast.Module

    def nodes(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        """Return all nodes of these kinds."""
        return (node for node in ast.walk(self.tree) if isinstance(node, kinds))

    def functions(self) -> Iterator[Function]:
        """Return all functions, including nested ones."""
        return (node for node in ast.walk(self.tree) if isinstance(node, FUNCTIONS))

    def constructors(self) -> Iterator[Function]:
        """Return all functions named ``__init__``."""
        return (node for node in self.functions() if node.name == "__init__")


class Lines(NamedTuple):
    """Numbers of lines by kind, without blank lines."""

    code: int
    comment: int
    docstring: int


def load(files: Iterable[pathlib.Path]) -> list[Module]:
    """Parse Python files."""
    texts = ((path, path.read_text(encoding="utf-8")) for path in sorted(files))
    return [Module(path, text, ast.parse(text)) for path, text in texts]


def lines_of(module: Module) -> Lines:
    """Count a module's lines by kind."""
    documented: set[int] = set()
    for node in module.nodes(ast.Module, ast.ClassDef, *FUNCTIONS):
        match getattr(node, "body", []):
            case [ast.Expr(value=ast.Constant(value=str()) as text), *_]:
                documented.update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    code: set[int] = set()
    comments: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in NO_CODE and token.string:
            code.update(range(token.start[0], token.end[0] + 1))
    code -= documented
    return Lines(len(code), len(comments - code), len(documented))


def length(node: Function) -> int:
    """Return the number of lines of a function without its decorators."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def parameters(node: Function) -> list[ast.arg]:
    """Return the parameters of a method without ``self``."""
    named = node.args
    return [*named.posonlyargs, *named.args, *named.kwonlyargs][1:]


def is_callable(parameter: ast.arg) -> bool:
    """Return whether a parameter's type contains ``Callable``."""
    return bool(parameter.annotation and "Callable" in ast.unparse(parameter.annotation))


def is_numeric(node: ast.expr | None) -> bool:
    """Return whether an expression consists of numbers and names."""
    inner = list(ast.walk(node)) if node else []
    numbers = [type(one.value) in {int, float} for one in inner if isinstance(one, ast.Constant)]
    return (
        bool(numbers)
        and all(numbers)
        and not any(isinstance(one, ast.Call | ast.Dict | ast.Lambda) for one in inner)
    )


def constants(module: Module) -> int:
    """Count the numeric constants of a module."""
    made = (node for node in module.tree.body if isinstance(node, ast.Assign | ast.AnnAssign))
    targets = (
        target
        for node in made
        if is_numeric(node.value)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    )
    inner = itertools.chain.from_iterable(map(ast.walk, targets))
    return sum(isinstance(one, ast.Name) and one.id.isupper() for one in inner)


def patches(tests: Iterable[Module]) -> int:
    """Count the calls of monkeypatch that replace a constant."""
    calls = [node for module in tests for node in module.nodes(ast.Call)]
    found = (
        node.args[1].value
        for node in calls
        if isinstance(node, ast.Call)
        and len(node.args) > 2
        and ast.unparse(node.func) == "monkeypatch.setattr"
        and isinstance(node.args[1], ast.Constant)
    )
    return sum(str(name).isupper() for name in found)


def options(product: Iterable[Module]) -> int:
    """Count the options with a help text; the others belong to other programs."""
    calls = (node for module in product for node in module.nodes(ast.Call))
    return sum(
        isinstance(node, ast.Call)
        and bool(re.fullmatch(r"cfg\.\w*Opt", ast.unparse(node.func)))
        and any(keyword.arg == "help" for keyword in node.keywords)
        for node in calls
    )


def aliases(product: Iterable[Module]) -> int:
    """Count imports under a name with a leading or trailing underscore."""
    nodes = (node for module in product for node in module.nodes(ast.alias))
    names = (getattr(node, "asname", None) or "" for node in nodes)
    return sum(name.strip("_") != name for name in names)


def public_methods(product: Iterable[Module]) -> set[str]:
    """Return the distinct names of public methods."""
    classes = (node for module in product for node in module.nodes(ast.ClassDef))
    members = (node for room in classes for node in getattr(room, "body", []))
    return {node.name for node in members if isinstance(node, FUNCTIONS) and node.name[0] != "_"}


def namesakes(product: Iterable[Module]) -> int:
    """Count names of classes in more than two modules."""
    names = collections.Counter(
        name
        for module in product
        for name in {getattr(node, "name", "") for node in module.nodes(ast.ClassDef)}
    )
    return sum(count > MANY_NAMESAKES for count in names.values())


def words(files: Iterable[pathlib.Path]) -> int:
    """Count words as ``wc -w`` does."""
    return sum(len(path.read_text(encoding="utf-8").split()) for path in files)


def glossary_entries(page: pathlib.Path) -> int:
    """Count the terms of a glossary in definition lists and list-tables."""
    text = page.read_text(encoding="utf-8")
    terms = re.findall(r"^(?!\.\. )\S.*\n {3,4}[^\s:*]", text, re.MULTILINE)
    return len(terms) + text.count("\n   * - ") - text.count(":header-rows:")


def measure(root: pathlib.Path) -> dict[str, float]:
    """Return all measures of a tree."""
    product = load(path for room in root.glob("acstor_*/") for path in room.rglob("*.py"))
    every = sorted(length(node) for module in product for node in module.functions())
    starts = [node for module in product for node in module.constructors()]
    counted = [lines_of(module) for module in product]
    folders = collections.Counter(module.path.parent for module in product).values()
    methods = public_methods(product)
    doc = root / "doc/source"
    evictions = sum("popitem(last=False)" in module.text for module in product)
    versions = "acstor_decision/db/migrations/versions/v*.py"
    values = (
        sum(one.code for one in counted),
        sum(one.comment + one.docstring for one in counted),
        statistics.median(every),
        statistics.quantiles(every, n=10)[-1],
        every[-1],
        sum(one > LONG_LINES for one in every),
        max(module.text.count("\n") for module in product),
        max(map(length, starts), default=0),
        sum(len(parameters(node)) > MANY_PARAMETERS for node in starts),
        sum(is_callable(one) for node in starts for one in parameters(node)),
        options(product),
        sum(map(constants, product)),
        patches(load((root / "tests").rglob("*.py"))),
        aliases(product),
        sum(count > MANY_MODULES for count in folders),
        max(folders),
        round(100 * sum("_" not in name for name in methods) / max(len(methods), 1)),
        namesakes(product),
        evictions,
        *(words((doc / part).rglob("*.rst")) for part in PARTS),
        glossary_entries(doc / "contributor/glossary.rst"),
        len(list((root / "releasenotes/notes").glob("*.yaml"))),
        len(list(root.glob(versions))),
    )
    return dict(zip(BEFORE, values, strict=True))


def packages(root: pathlib.Path) -> dict[str, Lines]:
    """Return the lines of each product package."""
    return {
        room.name: Lines(*map(sum, zip(*map(lines_of, load(room.rglob("*.py"))), strict=True)))
        for room in sorted(root.glob("acstor_*/"))
    }


def missed(found: dict[str, float]) -> Iterator[str]:
    """Return the measures above their targets."""
    return (
        name
        for name, value in found.items()
        if (target := BEFORE[name][1]) is not None and value > target
    )


def table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table without borders."""
    made = prettytable.PrettyTable(names, align="r", border=False, none_format="-")
    made.left_padding_width, made.right_padding_width = 0, 2
    made.align[names[0]] = "l"
    made.add_rows([list(row) for row in rows])
    return "\n".join(line.rstrip() for line in made.get_string().splitlines())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.scorecard", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="tree to measure")
    chosen = parser.parse_args(argv)
    if not any(chosen.root.glob("acstor_*/*.py")):
        parser.error(f"no package of acstor in {chosen.root}")
    found, rooms = measure(chosen.root), packages(chosen.root)
    if chosen.json:
        rows = {
            name: {"now": value, "before": BEFORE[name][0], "target": BEFORE[name][1]}
            for name, value in found.items()
        }
        lines = {name: count._asdict() for name, count in rooms.items()}
        print(json.dumps({"before": BEFORE_ON, "measures": rows, "packages": lines}, indent=2))
        return 0
    kinds = Lines._fields
    heads = ["lines", *kinds, *(f"{kind} {BEFORE_ON}" for kind in kinds)]
    print(table(heads, ((name, *rooms[name], *PACKAGES_BEFORE.get(name, "---")) for name in rooms)))
    print()
    rows_now = ((name, f"{value:g}", *BEFORE[name]) for name, value in found.items())
    print(table(["measure", "now", BEFORE_ON, "target"], rows_now))
    for name in missed(found):
        print(f"\nmissed: {name}: {REASONS.get(name, 'no reason is known')}", end="")
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
