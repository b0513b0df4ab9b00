# SPDX-License-Identifier: Apache-2.0
"""Signals of a daemon: SIGTERM and SIGINT stop it, no other one that has a handler ends it.

As in oslo.service SIGHUP opens the log files again and reads the options that may change while a
service runs ("mutable" ones, such as ``debug``). SIGUSR2 writes the stacks of all threads to
standard error.
"""

import faulthandler
import logging
import signal
import sys
from collections.abc import Callable

LOG = logging.getLogger(__name__)

IGNORED = (signal.SIGUSR1, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO)


def install(read_options: Callable[[], object] | None = None) -> None:
    """Install the handlers in this process; forks keep them, programs that it starts do not.

    :param read_options: reads those again that may change (``mutate_config_files``)
    """
    for number in IGNORED:
        ignore(number)
    signal.signal(signal.SIGHUP, lambda _number, _frame: reload(read_options))
    if sys.__stderr__ is not None:
        faulthandler.register(signal.SIGUSR2, file=sys.__stderr__, all_threads=True)


def ignore(number: int) -> None:
    """Ignore a signal, in this process alone: what SIG_IGN ignores, programs inherit."""
    signal.signal(number, _ignored)
    signal.siginterrupt(number, False)


def reload(read_options: Callable[[], object] | None) -> None:
    """Open the log files again, and read the options that may change."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler):
            # Who is just writing to the former file goes on; it is closed when nobody has it.
            handler.setStream(handler._open())
    if read_options is not None:
        try:
            read_options()
        except Exception as e:  # a file that somebody is writing ends no daemon
            LOG.error("cannot reload the options, keeping the old ones: %s", e)
            return
    LOG.info("SIGHUP: log files are opened and options read again")


def _ignored(_number: int, _frame: object) -> None:
    """Do nothing."""
