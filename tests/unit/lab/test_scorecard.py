# SPDX-License-Identifier: Apache-2.0
import json
import pathlib

import pytest

from tests.lab import scorecard

CODE = '''"""One line."""

import json as json_
from collections.abc import Callable  # code, with a comment

from oslo_config import cfg

LIMIT_S, _SHARE = 5.0, 3
BOTH = LIMIT_S * 2
NAME = "no number"
MADE = int(5)
OPTIONS = [cfg.StrOpt("mine", help="Ours."), cfg.StrOpt("theirs")]
# a comment


class Room:
    """First.

    Second.
    """

    def __init__(self, a, b, c, d, e, f, g, h, i, reported: Callable[[], None]) -> None:
        self.made = "not a docstring"

    @property
    def size(self) -> int:
        return 0

    async def read_all(self) -> None:
        self.seen.popitem(last=False)

    def _hidden(self) -> None: ...
'''
TEST = """
def test_it(monkeypatch):
    monkeypatch.setattr(code, "LIMIT_S", 1)
    monkeypatch.setattr(code.Room, "read_all", None)
"""
GLOSSARY = """
Glossary
========

One text.

chunk
    A piece.
ring, v-node
    A place.
"""


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    """A tree of three packages, with documents."""
    files = {
        "acstor_a/code.py": CODE,
        "acstor_b/deep/code.py": "class Room: ...\n",
        "acstor_c/code.py": "class Room: ...\n\n\nclass Other: ...\n",
        "acstor_decision/db/migrations/versions/v0001_first.py": "",
        "acstor_decision/db/migrations/versions/__init__.py": "",
        "tests/test_code.py": TEST,
        "doc/source/contributor/glossary.rst": GLOSSARY,
        "doc/source/user/deep/page.rst": "Three short words.",
        "doc/source/user/output.txt": "not counted",
        "releasenotes/notes/one.yaml": "",
    }
    files |= {f"acstor_c/wide/m{number}.py": "" for number in range(16)}
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_lines_are_counted_as_code_comment_or_docstring(root: pathlib.Path) -> None:
    lines = scorecard.packages(root)
    assert lines["acstor_a"] == (17, 1, 5)
    assert lines["acstor_b"] == (1, 0, 0)


def test_measures_of_a_small_tree(root: pathlib.Path) -> None:
    found = scorecard.measure(root)
    assert found == {
        "code lines": 20,
        "comment and docstring lines": 6,
        "function lines, median": 2,
        "function lines, 90th percentile": 2,
        "function lines, longest": 2,
        "functions above 40 lines": 0,
        "largest file, lines": CODE.count("\n"),
        "largest __init__, lines": 2,
        "constructors above 8 parameters": 1,
        "Callable parameters of constructors": 1,
        "own options": 1,
        "numeric constants of modules": 3,
        "patches of constants in tests": 1,
        "underscore import aliases": 1,
        "folders above 15 modules": 1,
        "modules in the largest folder": 16,
        "one-word public methods, %": 50,
        "class names in more than 2 modules": 1,
        "files with popitem(last=False)": 1,
        "words in user": 3,
        "words in install": 0,
        "words in admin": 0,
        "words in contributor": len(GLOSSARY.split()),
        "glossary entries": 2,
        "release notes": 1,
        "migrations": 1,
    }


def test_long_function_is_counted_without_its_decorators(root: pathlib.Path) -> None:
    body = "\n".join(["    pass"] * 40)
    (root / "acstor_b/long.py").write_text(f"@cached\ndef read():\n{body}\n")
    found = scorecard.measure(root)
    assert found["functions above 40 lines"] == 1
    assert found["function lines, longest"] == 41


def test_terms_of_a_table_are_glossary_entries(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "glossary.rst"
    page.write_text(".. list-table::\n   :header-rows: 1\n\n   * - Say\n   * - a\n   * - b\n")
    assert scorecard.glossary_entries(page) == 2


def test_json_has_each_measure_with_its_former_value_and_target(
    root: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scorecard.main(["--json", "--root", str(root)]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["before"] == "2026-11-25"
    assert reported["measures"]["release notes"] == {"now": 1, "before": 207, "target": 1}
    assert reported["packages"]["acstor_b"] == {"code": 1, "comment": 0, "docstring": 0}


def test_table_has_a_row_for_each_measure_and_package(
    root: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scorecard.main(["--root", str(root)])
    rows = {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    assert "words in install 0 3554 4000" in rows
    assert "acstor_decision 0 0 0 6639 100 1704" in rows


def test_missed_targets_have_their_reasons(
    root: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scorecard.main(["--root", str(root)])
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("missed: ")]
    assert told == [
        "missed: constructors above 8 parameters: no reason is known",
        "missed: folders above 15 modules: these have 15 modules, and __init__.py",
        "missed: modules in the largest folder: 15 modules, and __init__.py",
        "missed: one-word public methods, %: no reason is known",
    ]


def test_folder_without_packages_is_an_error(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        scorecard.main(["--root", str(tmp_path)])
    assert f"no package of acstor in {tmp_path}" in capsys.readouterr().err
