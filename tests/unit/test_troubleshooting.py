# SPDX-License-Identifier: Apache-2.0
"""The pages of troubleshooting have every text that operators meet, and no other.

Collected are the texts of warnings and errors in logs, those with which commands end, and those of
acstor's own errors; the one with the most letters stands for an error that has several.  What is no
constant is ``…``.  A text of few letters is only a frame around another one.
"""

import ast
import functools
import pathlib
import re
from collections.abc import Iterator

from acstor_common.wire import control_wire

ROOT = pathlib.Path(__file__).resolve().parents[2]
ADMIN = ROOT / "doc/source/admin"
PAGES = sorted(ADMIN.glob("troubleshooting*.rst"))
LOGGED = re.compile(r"\b_?LOG\.(error|warning|exception|critical)|self\.(_warn|_complaints\.say)")
ENDED = re.compile(r"(.*\.)?(CommandError|exit|SystemExit|error)")
RAISED = re.compile(r"errors\.[A-Z]\w+")
HOLE = re.compile(r"%\(\w+\)[a-z]|%[-.0-9]*[a-z]")
FEW_LETTERS = 12
NOT_OF_A_CLOUD = "acstor_simulator"


def texts_of(node: ast.expr) -> list[str]:
    """Return what an expression may say; nothing if no part of it is constant."""
    match node:
        case ast.Constant(value=str(text)):
            return [HOLE.sub("…", text)]
        case ast.JoinedStr(values=parts):
            return [
                "".join(part.value if isinstance(part, ast.Constant) else "…" for part in parts)
            ]
        case ast.IfExp(body=one, orelse=other):
            return texts_of(one) + texts_of(other)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            said = texts_of(left) + texts_of(right)
            ends = (texts_of(end) or ["…"] for end in (left, right))
            return ["".join(end[0] for end in ends)] if said else []
        case ast.BinOp(left=left, op=ast.Mod()):
            return texts_of(left)
    return []


def letters(text: str) -> int:
    return sum(character.isalpha() for character in text)


def said_in(tree: ast.AST) -> Iterator[str]:
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        name = ast.unparse(call.func)
        if LOGGED.fullmatch(name) or ENDED.fullmatch(name):
            texts = [text for first in call.args[:1] for text in texts_of(first)]
        elif RAISED.fullmatch(name):
            given = [*call.args, *(keyword.value for keyword in call.keywords)]
            every = [text for one in given for text in texts_of(one)]
            texts = [max(every, key=letters)] if every else []
        else:
            continue
        yield from (" ".join(text.split()) for text in texts if letters(text) >= FEW_LETTERS)


@functools.cache
def said_by_the_code() -> dict[str, str]:
    """Return all texts, each with a module that says it."""
    modules = sorted(ROOT.glob("acstor_*/**/*.py"))
    return {
        text: str(path.relative_to(ROOT))
        for path in modules
        if path.relative_to(ROOT).parts[0] != NOT_OF_A_CLOUD
        for text in said_in(ast.parse(path.read_text()))
    }


def said_by_the_pages() -> list[str]:
    return [
        text
        for page in PAGES
        for text in re.findall(r"^\| ``(.+)``$", page.read_text(), flags=re.MULTILINE)
    ]


def test_what_is_collected_is_what_an_operator_reads() -> None:
    said = list(
        said_in(
            ast.parse(
                "LOG.warning('disk %s: syncs fail: %s', a, b)\n"
                "raise errors.Unusable('few', f'the folder {a} is in use', 'Take it')\n"
                "sys.exit('there is nothing ' + what)\n"
                "raise errors.Unusable(a, 'it is too long' if b else 'it is much too short')\n"
                "LOG.info('nobody has to look here'); LOG.error('%s: %s', a, b)"
            )
        )
    )
    assert sorted(said) == [
        "disk …: syncs fail: …",
        "it is much too short",
        "the folder … is in use",
        "there is nothing …",
    ]


def test_every_text_of_the_code_has_an_entry() -> None:
    told = set(said_by_the_pages())
    missing = [f"{path}: {text}" for text, path in said_by_the_code().items() if text not in told]
    assert missing == []


def test_no_entry_is_of_a_text_that_no_code_says() -> None:
    said = said_by_the_code()
    assert [text for text in said_by_the_pages() if text not in said] == []


def test_every_entry_says_what_to_do() -> None:
    """Behind the texts of an entry stands prose, of more than one short sentence."""
    short = []
    for page in PAGES:
        for entry in re.split(r"\n(?=[^\n]+\n-{3,}\n)", page.read_text())[1:]:
            prose = [line for line in entry.splitlines()[2:] if not line.startswith(("|", "="))]
            if len(" ".join(prose).split()) < 10:
                short.append(entry)
    assert short == []


def test_every_finding_of_status_has_a_row() -> None:
    code = (ROOT / "acstor_decision/core/health_checks.py").read_text()
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    found = {
        node.args[0].value
        for node in calls
        if ast.unparse(node.func) == "_finding" and isinstance(node.args[0], ast.Constant)
    }
    rows = re.findall(r"^   \* - (``.+``)$", (ADMIN / "troubleshooting.rst").read_text(), re.M)
    assert found == {name for row in rows for name in re.findall(r"``([\w-]+)``", row)}


def test_every_alert_and_every_reason_of_nova_has_a_row() -> None:
    rules = (ROOT / "etc/prometheus/acstor.rules.yaml").read_text()
    alerts = re.findall(r"alert: (\w+)", rules)
    rows = "".join(re.findall(r"^   \* - (?:``.+)$", (ADMIN / "watching.rst").read_text(), re.M))
    assert alerts
    assert [alert for alert in alerts if f"``{alert}``" not in rows] == []
    page = (ADMIN / "nova.rst").read_text()
    assert [reason for reason in control_wire.Fallback if f"``{reason.value}``" not in page] == []
