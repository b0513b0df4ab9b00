# SPDX-License-Identifier: Apache-2.0
"""A line of the log that tells what is wrong, once until that changes.

What is tried again and again does not fill the log while it fails for one reason.
"""

import logging


class LogOnce:
    """Tells what is wrong with one thing.

    :param log: of the module that tells it
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log, self._told = log, ""

    def log_warning(self, what: str) -> None:
        """Write a warning, unless it was the last one.

        :param what: empty: nothing is wrong any more, and the same may be told again
        """
        if what and what != self._told:
            self._log.warning("%s", what)
        self._told = what
