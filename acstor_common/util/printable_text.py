# SPDX-License-Identifier: Apache-2.0
"""Filter for untrusted text in terminals and logs: image names, errors of peers.

It removes escape sequences and line ends, which could forge rows.  JSON output is not filtered.
"""

from typing import Any


def text(told: str) -> str:
    r"""Return text with a question mark for each character that is not printable.

    >>> text("\x1b[2J\u202eaway\n")
    '?[2J?away?'
    """
    return told if told.isprintable() else "".join(c if c.isprintable() else "?" for c in told)


def lines(told: str) -> str:
    r"""Return the same for text with several lines; line ends stay.

    >>> lines("a\nb\x1bc\n")
    'a\nb?c\n'
    """
    return "\n".join(map(text, told.split("\n")))


def data(told: Any) -> Any:
    r"""Return JSON-like data with all its strings filtered.

    >>> data({"\n": ["a\n", 1]})
    {'?': ['a?', 1]}
    """
    if isinstance(told, str):
        return text(told)
    if isinstance(told, dict):
        return {data(name): data(value) for name, value in told.items()}
    return [data(one) for one in told] if isinstance(told, list) else told
