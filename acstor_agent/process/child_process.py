# SPDX-License-Identifier: Apache-2.0
"""A worker process, from fork to exit."""

import logging
import os
import signal
from collections.abc import Callable
from collections.abc import Collection
from typing import NoReturn

from acstor_agent.mount import fuse_connection
from acstor_common import errors
from acstor_common.service import signals

LOG = logging.getLogger(__name__)

MOUNT_STORED = signal.SIGRTMIN
"""Signals a worker that the mount is kept, so that it exits with its supervisor."""
EXIT_UNUSABLE = 78  # exit status when a restart cannot help (EX_CONFIG of sysexits.h)


def run_child(
    work: Callable[[], None], is_stored: bool, blocked: Collection[signal.Signals]
) -> NoReturn:
    """Run a worker in a fork of the supervisor, and exit without its clean-up."""
    supervisor = os.getppid()
    if is_stored:
        die_with_supervisor(supervisor)
    await_stored_mount(supervisor)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signals.ignore(signal.SIGALRM)
    signal.siginterrupt(signal.SIGHUP, False)  # see await_stored_mount
    signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
    status = 1
    try:
        work()
        status = 0
    except errors.Unusable as e:
        LOG.error("%s", e)
        status = EXIT_UNUSABLE
    except BaseException:
        LOG.exception("worker %d failed", os.getpid())
    finally:
        logging.shutdown()
        os._exit(status)


def await_stored_mount(supervisor: int) -> None:
    """Make this worker die with its supervisor once the mount is kept.

    The signal must not interrupt calls: libfuse does not repeat a failed write to a relay.
    """
    signal.signal(MOUNT_STORED, lambda number, frame: die_with_supervisor(supervisor))
    signal.siginterrupt(MOUNT_STORED, False)


def die_with_supervisor(supervisor: int) -> None:
    """Have the kernel kill this worker when its supervisor exits."""
    fuse_connection.die_with_parent()
    if os.getppid() != supervisor:
        os._exit(1)
