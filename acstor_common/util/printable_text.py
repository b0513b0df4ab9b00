# SPDX-License-Identifier: Apache-2.0
"""Texts of others for terminals and logs: names of images, reasons of hosts, answers of servers.

Whoever wrote such a text may have put escape sequences into it, which do something to a terminal,
or line ends, which forge rows.  Every command and log shows it through this one filter; programs
(JSON) get all as it is.
"""

from typing import Any


def text(told: str) -> str:
    r"""Return what others say with a question mark for each character that is not printable.

    >>> text("\x1b[2J\u202eaway\n")
    '?[2J?away?'
    """
    return told if told.isprintable() else "".join(c if c.isprintable() else "?" for c in told)


def lines(told: str) -> str:
    r"""Return the same of a text of ours with several lines.

    >>> lines("a\nb\x1bc\n")
    'a\nb?c\n'
    """
    return "\n".join(map(text, told.split("\n")))


def data(told: Any) -> Any:
    r"""Return the same with all its words printable.

    >>> data({"\n": ["a\n", 1]})
    {'?': ['a?', 1]}
    """
    if isinstance(told, str):
        return text(told)
    if isinstance(told, dict):
        return {data(name): data(value) for name, value in told.items()}
    return [data(one) for one in told] if isinstance(told, list) else told
