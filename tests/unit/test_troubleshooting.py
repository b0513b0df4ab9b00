# SPDX-License-Identifier: Apache-2.0
"""The troubleshooting pages cover exactly the texts that operators meet.

Collected are the texts of warnings and errors in logs, the final texts of commands, and those of
acstor's own errors; an error with several texts is represented by the one with the most letters.
``…`` replaces every variable part.  A page quotes a searchable part of a text; one quote may cover
several texts.  No entry is needed for a text of few letters (a frame around another text), for an
option's name before its own reason, or for an error that states its remedy.  Errors that put their
reasons into the same words are quoted by the reasons.
"""

import ast
import functools
import pathlib
import re
from collections.abc import Iterator

import docutils.nodes
import pytest
import yaml

from acstor_common import errors
from acstor_common.wire import control_wire
from tests.lab import documents

ROOT = pathlib.Path(__file__).resolve().parents[2]
ADMIN = ROOT / "doc/source/admin"
PAGES = sorted(ADMIN.glob("troubleshooting_*.rst"))
LOGGED = re.compile(
    r"\b_?LOG\.(error|warning|exception|critical)|_may_hook"
    r"|self\.(_warn|_warnings\.log_line|_log\.warning|_(trouble|meter_fault)\.log_warning)"
)
ENDED = re.compile(r"(.*\.)?(CommandError|exit|SystemExit|error)")
RAISED = re.compile(r"errors\.([A-Z]\w+)")
HOLE = re.compile(r"%\(\w+\)[a-z]|%[-.0-9]*[a-z]")
OPTION = re.compile(r"\[\w+\] [\w, ]+( …)?")
FEW_LETTERS = 12
FEWEST_QUOTED = 4
NOT_OF_A_CLOUD = "acstor_simulator"
FRAMES = {
    errors.FormatError: "…: byte …: …",
    errors.NotAuthenticated: "… is rejected: …",
    errors.RemoteProtocolError: "… broke the protocol: …",
    errors.LocalProtocolError: "",  # a bug, which its traceback shows
}
"""The common words of all errors of a class."""


def texts_of(node: ast.expr) -> list[str]:
    """Return the possible texts of an expression; none if no part of it is constant."""
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
        elif raised := RAISED.fullmatch(name):
            texts = said_by_error(getattr(errors, raised[1]), call)
        else:
            continue
        for text in (" ".join(text.split()) for text in texts):
            if (text and text in FRAMES.values()) or (
                letters(text) >= FEW_LETTERS and not OPTION.fullmatch(text)
            ):
                yield text


def said_by_error(kind: type[errors.AcstorError], call: ast.Call) -> list[str]:
    for base, frame in FRAMES.items():
        if issubclass(kind, base):
            return [frame] if frame else []
    has_remedy = len(call.args) > 2 or any(one.arg == "remedy" for one in call.keywords)
    if issubclass(kind, errors.Unusable) and has_remedy:
        return []
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    every = [text for one in given for text in texts_of(one)]
    return [max(every, key=letters)] if every else []


@functools.cache
def said_by_the_code() -> dict[str, str]:
    """Return all texts, each with a module that contains it."""
    modules = sorted(ROOT.glob("acstor_*/**/*.py"))
    return {
        text: str(path.relative_to(ROOT))
        for path in modules
        if path.relative_to(ROOT).parts[0] != NOT_OF_A_CLOUD
        for text in said_in(ast.parse(path.read_text()))
    }


def quotes(page: pathlib.Path) -> list[str]:
    """Return the literals in the first cells of a page's tables."""
    return [
        " ".join(quote.astext().split())
        for first, *_ in documents.table_rows(page)
        for quote in first.findall(docutils.nodes.literal)
    ]


@functools.cache
def pattern(quote: str) -> re.Pattern[str]:
    """Return a pattern that finds a quote's words in a text, with any text in place of ``…``."""
    return re.compile(".*".join(map(re.escape, re.split(r"\s*…\s*", quote))))


def test_collected_texts_are_those_that_operators_see() -> None:
    said = list(
        said_in(
            ast.parse(
                "LOG.warning('disk %s: syncs fail: %s', a, b)\n"
                "raise errors.Unusable('few', f'the folder {a} is in use')\n"
                "raise errors.Unusable('a folder', 'it is in use by somebody', 'Take another')\n"
                "raise errors.Unusable('[acstor_agent] cache_dir', a)\n"
                "raise errors.CacheFormatError(a, 0, 'this is not a slab file')\n"
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
        "…: byte …: …",
    ]


def test_every_text_of_the_code_has_an_entry() -> None:
    reported = [pattern(quote) for page in PAGES for quote in quotes(page)]
    missing = [
        f"{path}: {text}"
        for text, path in said_by_the_code().items()
        if not any(quote.search(text) for quote in reported)
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=documents.name_of)
def test_every_entry_quotes_a_text_of_the_code(page: pathlib.Path) -> None:
    said = said_by_the_code()
    stale = [quote for quote in quotes(page) if not any(map(pattern(quote).search, said))]
    assert stale == []
    assert [quote for quote in quotes(page) if letters(quote) < FEWEST_QUOTED] == []


@pytest.mark.parametrize("page", PAGES, ids=documents.name_of)
def test_every_entry_has_a_cause_and_a_remedy(page: pathlib.Path) -> None:
    rows = list(documents.table_rows(page))
    assert rows
    assert [row[0].astext() for row in rows if not all(cell.astext() for cell in row)] == []


def test_every_finding_of_status_has_a_row() -> None:
    code = (ROOT / "acstor_decision/core/health_checks.py").read_text()
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    found = {
        node.args[0].value
        for node in calls
        if ast.unparse(node.func) in ("finding.make_finding", "_warning")
        and isinstance(node.args[0], ast.Constant)
    }
    assert found == set(quotes(ADMIN / "troubleshooting.rst"))


def test_every_alert_links_to_its_section() -> None:
    rules = yaml.safe_load((ROOT / "etc/prometheus/acstor.rules.yaml").read_text())
    alerts = {
        rule["alert"]: rule["annotations"].get("runbook_url")
        for group in rules["groups"]
        for rule in group["rules"]
    }
    rows = list(documents.table_rows(ADMIN / "monitoring.rst"))
    anchors = {
        target["ids"][0]: target.astext()
        for first, *_ in rows
        for target in first.findall(docutils.nodes.target)
    }
    assert alerts == {name: f"admin/monitoring.html#{at}" for at, name in anchors.items()}


def metric_patterns() -> Iterator[str]:
    """Yield patterns of metric names, from the constants of the modules that define them."""
    for path in ROOT.glob("acstor_*/**/*metrics*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        words = {
            node.value
            for node in nodes
            if isinstance(node, ast.Constant) and re.fullmatch(r"[a-z_]+", str(node.value))
        }
        yield from words
        part = f"(?:{'|'.join(sorted(words))})"
        for node in nodes:
            if isinstance(node, ast.JoinedStr):
                [text] = texts_of(node)
                if re.fullmatch(r"acstor_[a-z_…]+", text):
                    yield text.replace("…", part)


def test_metrics_explained_on_the_page_exist() -> None:
    page = ADMIN / "monitoring.rst"
    named = set(re.findall(r"``(acstor_\w+[a-z])``", page.read_text()))
    known = re.compile(f"(?:{'|'.join(metric_patterns())})(?:_total|_info)?")
    assert len(named) > 20
    assert [name for name in sorted(named) if not known.fullmatch(name)] == []


def test_every_fallback_reason_of_nova_has_a_row() -> None:
    page = (ADMIN / "nova.rst").read_text()
    assert [reason for reason in control_wire.Fallback if f"``{reason.value}``" not in page] == []
