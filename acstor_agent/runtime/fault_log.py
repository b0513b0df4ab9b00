# SPDX-License-Identifier: Apache-2.0
"""Logs unexpected errors, bugs of this program, which end only one operation.

Tracebacks are logged at a limited rate for each kind, since peers may provoke one repeatedly.
"""

import logging

import trio

from acstor_common.util import log_limit

LOG = logging.getLogger(__name__)

LOG_EVERY_S = 600.0


class FaultLog:
    """Faults of one part of the agent; ``count`` is their number."""

    def __init__(self) -> None:
        self.count = 0
        self._log_limit = log_limit.LogLimit(LOG_EVERY_S)

    def record_fault(self, what: str, error: Exception) -> str:
        """Count a fault, log it if it is new, and describe it; ``what``: the failed operation."""
        self.count += 1
        cause: BaseException = error
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        suppressed = self._log_limit.take_line(
            (what, type(cause), _line_of(cause)), trio.current_time()
        )
        if suppressed is not None:
            LOG.error("%s has failed (and %d like it)", what, suppressed, exc_info=error)
        return f"{type(cause).__name__}: {cause}"


def _line_of(error: BaseException) -> tuple[str, int]:
    traceback = error.__traceback__
    if traceback is None:
        return "", 0
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_code.co_filename, traceback.tb_lineno
