# SPDX-License-Identifier: Apache-2.0
"""What lines of the log look like: printable, and each text in them once."""

import copy
import logging

from acstor_common.util import printable_text


class Formatter(logging.Formatter):
    """Formats as another formatter does, but for texts of others and for what is said twice.

    oslo.log puts the active exception behind each warning, most of which have its text already.
    """

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the trace behind it."""
        shown, message = copy.copy(record), printable_text.text(record.getMessage())
        shown.msg, shown.args = message, ()
        line = self._inner.format(shown)
        summary = getattr(shown, "error_summary", "") or ""
        if _is_said(summary, message):
            line = line.replace(f"{message}: {summary}", message, 1)
        return line if getattr(shown, "color", "") else printable_text.lines(line)


def _is_said(summary: str, message: str) -> bool:
    """Say whether a message tells what a summary tells.

    >>> _is_said("acstor_common.errors.NotEnrolled: no table", "waiting: no table")
    True
    >>> _is_said("KeyError: 'a'", "unexpected"), _is_said("KeyError", "unexpected")
    (False, False)
    """
    kind, _, why = summary.partition(": ")
    return kind.endswith("ExceptionGroup") or (why != "" and printable_text.text(why) in message)


def install() -> None:
    """Have all handlers of this process format so."""
    for handler in logging.getLogger().handlers:
        if not isinstance(handler.formatter, Formatter):
            handler.setFormatter(Formatter(handler.formatter or logging.Formatter()))
