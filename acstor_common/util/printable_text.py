# SPDX-License-Identifier: Apache-2.0
"""Filter for untrusted text in terminals and logs, where escape sequences could forge rows."""

from typing import Any


def text(given: str) -> str:
    r"""Return text with a question mark for each character that is not printable.

    >>> text("\x1b[2J\u202eaway\n")
    '?[2J?away?'
    """
    return given if given.isprintable() else "".join(c if c.isprintable() else "?" for c in given)


def lines(given: str) -> str:
    r"""Return the same for text with several lines; line ends stay.

    >>> lines("a\nb\x1bc\n")
    'a\nb?c\n'
    """
    return "\n".join(map(text, given.split("\n")))


def data(given: Any) -> Any:
    r"""Return JSON-like data with all its strings filtered.

    >>> data({"\n": ["a\n", 1]})
    {'?': ['a?', 1]}
    """
    if isinstance(given, str):
        return text(given)
    if isinstance(given, dict):
        return {data(name): data(value) for name, value in given.items()}
    return [data(item) for item in given] if isinstance(given, list) else given
