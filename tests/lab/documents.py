# SPDX-License-Identifier: Apache-2.0
"""The operator commands in the documents, extracted from the pages.

A block without a language has commands, or a piece of configuration by its first line; all other
blocks declare a language.  In a block with a prompt (``$``) all other lines are output.
A test that runs a page's commands requests them by page and section as literals, which shows
the covered sections.
"""

import dataclasses
import functools
import pathlib
import re
from collections.abc import Iterator
from collections.abc import Sequence

import docutils.core
import docutils.nodes
import docutils.utils

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE = ROOT / "doc/source"
FOLDERS = ("install", "user", "admin", "configuration")
PAGES = [
    ROOT / "README.rst",
    ROOT / "devstack/README.rst",
    *(path for folder in FOLDERS for path in sorted((SOURCE / folder).glob("*.rst"))),
]
SHELL_LANGUAGES = frozenset({"", "bash", "console", "sh", "shell"})
CONFIGURATION = re.compile(r'\[[[\w]|[{"]|/\S+: |(?:enable|disable)_|[A-Z_]+=[^\\\n]*(?:\n|$)')
"""Matches the start of a block that is a piece of a file, or a log line."""
OURS = re.compile(r"(?:openstack acstor|acstor-[a-z-]+) [^…]+")
"""An inline command line of acstor, with its arguments."""
SYNOPSIS = " COMMAND"
"""Marks a line that stands for all commands of a program."""
TABLE = "admin/commands.rst"
"""The page with tables of ``openstack acstor`` commands in their first column."""


@dataclasses.dataclass(frozen=True)
class Command:
    """A command line of a page.

    :param page: below ``doc/source``, or of the checkout
    :param section: title of its section
    :param line: the command without comments, continued lines joined
    :param is_inline: part of the running text
    """

    page: str
    section: str
    line: str
    is_inline: bool = False

    @property
    def program(self) -> str:
        """The program's name, without its folder and variables before it."""
        words = [word for word in self.line.split() if not re.match(r"[A-Z_]+=[^$]", word)]
        return pathlib.PurePath(words[0]).name if words else ""


def section(page: str, title: str, program: str = "") -> list[str]:
    """Return the command lines of a section's blocks, for a test that runs them.

    :param program: only its command lines
    :raises LookupError: the page has no such commands in such a section
    """
    lines = [
        one.line
        for one in commands(of_name(page))
        if one.section == title and not one.is_inline and program in ("", one.program)
    ]
    if not lines:
        raise LookupError(f"{page}: no commands under {title!r}")
    return lines


def of_name(page: str) -> pathlib.Path:
    """Return the path of a page, by its name in a :class:`Command`."""
    [path] = [one for one in PAGES if name_of(one) == page]
    return path


def name_of(path: pathlib.Path) -> str:
    """Return the name of a page."""
    folder = SOURCE if path.is_relative_to(SOURCE) else ROOT
    return path.relative_to(folder).as_posix()


def commands(path: pathlib.Path, page: str = "") -> Iterator[Command]:
    """Yield all command lines of a page, in order.

    :param page: its name, if it is not in PAGES
    """
    page = page or name_of(path)
    for node in _document(path).findall():
        if isinstance(node, docutils.nodes.literal_block) and _is_shell(node):
            for line in _lines(node.astext()):
                yield Command(page, _title(node), line)
        elif isinstance(node, docutils.nodes.literal):
            line = " ".join(node.astext().split())
            if page == TABLE and _is_in_first_column(node):
                line = f"openstack acstor {line}"
            if OURS.fullmatch(line) and SYNOPSIS not in line:
                yield Command(page, _title(node), line, is_inline=True)


def table_rows(path: pathlib.Path) -> Iterator[list[docutils.nodes.entry]]:
    """Yield the cells of each row of a page's tables, without headers."""
    for body in _document(path).findall(docutils.nodes.tbody):
        for row in body.findall(docutils.nodes.row):
            yield list(row.findall(docutils.nodes.entry))


@functools.cache
def _document(path: pathlib.Path) -> docutils.nodes.document:
    """Parse a page; ignore Sphinx's own directives and roles."""
    silent = docutils.utils.Reporter.SEVERE_LEVEL + 1
    settings = {"report_level": silent, "halt_level": silent, "file_insertion_enabled": False}
    return docutils.core.publish_doctree(
        path.read_text(), source_path=str(path), settings_overrides=settings
    )


def _is_shell(block: docutils.nodes.literal_block) -> bool:
    """Return whether a block has commands, by its language or its first line."""
    if isinstance(block.parent, docutils.nodes.system_message):
        return False  # part of a Sphinx directive
    languages = [name for name in block["classes"] if name != "code"]
    if languages:
        return languages[0] in SHELL_LANGUAGES
    return not CONFIGURATION.match(block.astext().lstrip())


def _is_in_first_column(node: docutils.nodes.Node) -> bool:
    """Return whether a node is in a row's first cell."""
    while node.parent is not None and not isinstance(node, docutils.nodes.entry):
        node = node.parent
    return isinstance(node, docutils.nodes.entry) and node.parent.index(node) == 0


def _title(node: docutils.nodes.Node) -> str:
    """Return the title of a node's innermost section."""
    while node.parent is not None:
        node = node.parent
        if isinstance(node, docutils.nodes.section):
            return str(node[0].astext())
    title = node.next_node(docutils.nodes.title)
    return str(title.astext()) if title else ""


def _lines(text: str) -> Sequence[str]:
    """Return a block's command lines, joined, without comments."""
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    bare = [re.sub(r"(?:^|\s+)#\s.*", "", line).strip() for line in lines]
    return [line for line in bare if line]
