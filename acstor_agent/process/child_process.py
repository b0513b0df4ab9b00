# SPDX-License-Identifier: Apache-2.0
"""A worker, from the fork to its exit, as its supervisor wants it.

A supervisor that comes back must not meet a worker of the one before it.
"""

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

NOW_KEPT = signal.SIGRTMIN
"""Tells a worker that somebody keeps the mount by now, so that it ends with its supervisor."""
EXIT_UNUSABLE = 78
"""What a worker exits with when starting again cannot help (EX_CONFIG of sysexits.h)."""


def run_child(
    work: Callable[[], None], is_kept: bool, held_back: Collection[signal.Signals]
) -> NoReturn:
    """Be a worker in a fork of the supervisor, and leave without its clean-up.

    :param is_kept: somebody keeps the mount already
    :param held_back: signals that the supervisor has blocked
    """
    supervisor = os.getppid()
    if is_kept:
        die_with_supervisor(supervisor)
    await_kept_mount(supervisor)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signals.ignore(signal.SIGALRM)
    signal.siginterrupt(signal.SIGHUP, False)  # see await_kept_mount
    signal.pthread_sigmask(signal.SIG_UNBLOCK, held_back)
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


def await_kept_mount(supervisor: int) -> None:
    """Have this worker end with its supervisor once somebody keeps the mount.

    The signal breaks off no call: libfuse does not repeat an answer to a relay, which would be
    lost.
    """
    signal.signal(NOW_KEPT, lambda number, frame: die_with_supervisor(supervisor))
    signal.siginterrupt(NOW_KEPT, False)


def die_with_supervisor(supervisor: int) -> None:
    """Have this worker be killed when its supervisor is gone, or be gone if that is."""
    fuse_connection.die_with_parent()
    if os.getppid() != supervisor:
        os._exit(1)
