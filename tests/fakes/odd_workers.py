# SPDX-License-Identifier: Apache-2.0
"""A supervisor with misbehaving workers, in its own process.

    python -m tests.fakes.odd_workers MOUNT_POINT WORK [signal-again]

It prints a line for each start of a worker: the time in seconds.
"""

import os
import pathlib
import signal
import sys
import time
from collections.abc import Callable

from acstor_agent.process import fd_store
from acstor_agent.process import supervisor
from acstor_common import errors

Work = Callable[[supervisor.Inheritance], None]


def die(inheritance: supervisor.Inheritance) -> None:
    """Exit at once by SIGKILL."""
    os.kill(os.getpid(), signal.SIGKILL)


def fail(inheritance: supervisor.Inheritance) -> None:
    """Exit at once with an error."""
    raise RuntimeError("by order")


def cannot_start(inheritance: supervisor.Inheritance) -> None:
    """Report that a restart cannot help."""
    raise errors.Unusable("the order", "says so")


def cannot_start_again(inheritance: supervisor.Inheritance) -> None:
    """Become ready, then report that a restart cannot help."""
    inheritance.ready()
    raise errors.Unusable("the order", "says so")


def serve(inheritance: supervisor.Inheritance) -> None:
    """Serve until SIGTERM."""
    inheritance.ready()
    time.sleep(60)


def serve_and_ignore_sigterm(inheritance: supervisor.Inheritance) -> None:
    """Serve, and ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    serve(inheritance)


WORKS = (die, fail, cannot_start, cannot_start_again, serve, serve_and_ignore_sigterm)


class SignalAgain(fd_store.NoStore):
    """Sends a second SIGTERM during the first one's check; then the host stops."""

    def __init__(self) -> None:
        self.checks = 0

    def stop_reason(self) -> fd_store.StopReason:
        """Return SIGNALLED, then HOST_STOPS."""
        self.checks += 1
        if self.checks > 1:
            return fd_store.StopReason.HOST_STOPS
        os.kill(os.getpid(), signal.SIGTERM)
        return fd_store.StopReason.SIGNALLED


class OddDaemon:
    """Runs workers of one kind."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def run_worker(self, inheritance: supervisor.Inheritance) -> None:
        """Print the time, and run the worker."""
        os.write(1, f"{time.monotonic()}\n".encode())
        self._work(inheritance)

    def notify_ready(self) -> None:
        """Print that a worker serves."""
        os.write(1, b"ready\n")

    def reload(self) -> None:
        """Do nothing."""


def main() -> int:
    """Supervise workers of the requested kind."""
    mount_point, name, *again = sys.argv[1:]
    chosen = {work.__name__: work for work in WORKS}[name]

    supervisor.STOP_WAIT_S = 0.5
    store = SignalAgain() if again else None
    return supervisor.Supervisor(pathlib.Path(mount_point), OddDaemon(chosen), store).run()


if __name__ == "__main__":
    sys.exit(main())
