# SPDX-License-Identifier: Apache-2.0
"""Supervision of long-lived threads: a loop that raises is logged, counted and restarted.

A vital loop that keeps failing ends the process with EXIT_FAILED, and systemd restarts it.
"""

import logging
import os
import threading
import time
from collections.abc import Callable

from acstor_common.util import backoff

LOG = logging.getLogger(__name__)

EXIT_FAILED = 70  # EX_SOFTWARE of sysexits.h

_lock = threading.Lock()
_failures: dict[str, int] = {}


def failures() -> dict[str, int]:
    """Return the number of failures of each loop of this process, by name."""
    with _lock:
        return dict(_failures)


def count_failure(name: str) -> None:
    """Count a failure of a loop that the caller restarts itself."""
    with _lock:
        _failures[name] = _failures.get(name, 0) + 1


def start(
    name: str,
    loop: Callable[[], None],
    stopping: threading.Event | None = None,
    *,
    is_vital: bool = True,
    first_pause_s: float = backoff.FIRST_PAUSE_S,
) -> threading.Thread:
    """Run a loop in a supervised daemon thread until it returns; return the thread.

    :param stopping: once set, the loop is not restarted
    :param is_vital: end the process if the loop keeps failing
    """

    def supervised() -> None:
        run(name, loop, stopping, is_vital=is_vital, first_pause_s=first_pause_s)

    return _started(name, supervised)


def start_once(name: str, work: Callable[[], None]) -> threading.Thread:
    """Run ``work`` once in a daemon thread; log and count a failure."""

    def guarded() -> None:
        try:
            work()
        except Exception:
            count_failure(name)
            LOG.exception("%s failed; not restarting it", name)

    return _started(name, guarded)


def run(
    name: str,
    loop: Callable[[], None],
    stopping: threading.Event | None = None,
    *,
    is_vital: bool = True,
    first_pause_s: float = backoff.FIRST_PAUSE_S,
) -> None:
    """Run a loop in the caller's thread until it returns; see :func:`start`."""
    stopping = stopping or threading.Event()
    most = backoff.MAX_FAILURES if is_vital else None
    again = backoff.Restarts(most, first_pause_s)
    while not stopping.is_set():
        began_s = time.monotonic()
        try:
            loop()
        except Exception:
            count_failure(name)
            pause_s = again.next_pause(time.monotonic() - began_s)
            if pause_s is None:
                LOG.exception("%s keeps failing; ending the process", name)
                logging.shutdown()
                os._exit(EXIT_FAILED)
            LOG.exception("%s failed; restarting it in %.1f s", name, pause_s)
            stopping.wait(pause_s)
        else:
            return


def _started(name: str, target: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread
