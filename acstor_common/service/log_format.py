# SPDX-License-Identifier: Apache-2.0
"""Log formatter that filters control characters and repeated error texts."""

import copy
import logging

from acstor_common.util import printable_text


class Formatter(logging.Formatter):
    """Makes another formatter's text printable; drops the exception if the message has its text."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, followed by the traceback if there is one."""
        shown, message = copy.copy(record), printable_text.text(record.getMessage())
        shown.msg, shown.args = message, ()
        line = self._inner.format(shown)
        summary = getattr(shown, "error_summary", "") or ""
        if _has_summary(summary, message):
            line = line.replace(f"{message}: {summary}", message, 1)
        return line if getattr(shown, "color", "") else printable_text.lines(line)


def _has_summary(summary: str, message: str) -> bool:
    """Return whether a message contains the text of an exception summary.

    >>> _has_summary("acstor_common.errors.NotEnrolled: no table", "waiting: no table")
    True
    >>> _has_summary("KeyError: 'a'", "unexpected"), _has_summary("KeyError", "unexpected")
    (False, False)
    """
    kind, _, why = summary.partition(": ")
    return kind.endswith("ExceptionGroup") or (why != "" and printable_text.text(why) in message)


def install() -> None:
    """Wrap the formatters of all handlers of this process."""
    for handler in logging.getLogger().handlers:
        if not isinstance(handler.formatter, Formatter):
            handler.setFormatter(Formatter(handler.formatter or logging.Formatter()))
