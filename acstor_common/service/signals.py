# SPDX-License-Identifier: Apache-2.0
"""Signal handlers of daemons: SIGHUP reopens logs, reloads options; SIGUSR2 writes stacks."""

import faulthandler
import logging
import signal
import sys
from collections.abc import Callable

LOG = logging.getLogger(__name__)

IGNORED = (signal.SIGUSR1, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO)


def install(read_options: Callable[[], object] | None = None) -> None:
    """Install the handlers; ``read_options`` reloads mutable options."""
    for number in IGNORED:
        ignore(number)
    signal.signal(signal.SIGHUP, lambda _number, _frame: reload(read_options))
    if sys.__stderr__ is not None:
        faulthandler.register(signal.SIGUSR2, file=sys.__stderr__, all_threads=True)


def ignore(number: int) -> None:
    """Ignore a signal in this process; executed programs would inherit SIG_IGN."""
    signal.signal(number, _ignored)
    signal.siginterrupt(number, False)


def reload(read_options: Callable[[], object] | None) -> None:
    """Reopen the log files, and reload mutable options."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler):
            # Threads may still write to the old stream; the last reference closes it.
            handler.setStream(handler._open())
    if read_options is not None:
        try:
            read_options()
        except Exception as e:  # a half-written file must not end the daemon
            LOG.error("cannot reload the options, keeping the old ones: %s", e)
            return
    LOG.info("SIGHUP: log files are opened and options read again")


def _ignored(_number: int, _frame: object) -> None:
    pass
