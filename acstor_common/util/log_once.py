# SPDX-License-Identifier: Apache-2.0
"""Warnings that are logged once until the problem changes."""

import logging


class LogOnce:
    """Logs the current problem of one thing when it changes."""

    def __init__(self, log: logging.Logger) -> None:
        self._log, self._last = log, ""

    def log_warning(self, what: str) -> None:
        """Log a warning unless it equals the last one; "" means no problem."""
        if what and what != self._last:
            self._log.warning("%s", what)
        self._last = what
