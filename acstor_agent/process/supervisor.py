# SPDX-License-Identifier: Apache-2.0
"""The supervisor: keeps the FUSE connection and the locks, and restarts workers.

It holds what outlives a worker: folder locks, the /dev/fuse descriptor (a relay's before Linux 6.9)
and the mount record. It forks workers. It never accesses the mount, because it would wait for
itself. A service manager or a holder keeps the connection, too; a supervisor that was killed or
restarted takes it back instead of mounting.

The next worker does not wait for a killed one, which runs no code any more, although its thread may
hang in a call to a dead file server.

A stop signal does not take the mount from running guests. Without a store the agent goes on; at a
stop of the unit it exits as soon as the mount is unused, which an unmount finds out while the
worker still answers.
"""

import contextlib
import dataclasses
import enum
import logging
import math
import os
import pathlib
import select
import signal
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Protocol

from acstor_agent.core.mount import fuse_init
from acstor_agent.mount import fuse_connection
from acstor_agent.mount import open_files
from acstor_agent.process import child_process
from acstor_agent.process import fd_store
from acstor_agent.process import folders
from acstor_agent.process import fuse_relay
from acstor_agent.runtime import process_cleanup
from acstor_common import errors
from acstor_common.util import backoff

LOG = logging.getLogger(__name__)

STOPS = frozenset({signal.SIGTERM, signal.SIGINT})
BLOCKED_SIGNALS = STOPS | {signal.SIGALRM}
"""Signals blocked while there is no worker, because their handlers signal it."""
STOP_WAIT_S = 10.0
ALARM_EARLY_S = 0.1  # tolerance for clock differences to the timer
RECHECK_S = 2.0  # interval of checks for guests while a stop is delayed
RESTART_PAUSE_S = 0.1, 1.0  # first and longest pause between workers that end at once
STEADY_AFTER_S = 1.0  # a worker that lived longer is replaced without delay
RENEW_S = 2.0
HELD_CHECK_S = 1.0
HELD_CHECKS = 3  # checks in a row after which an ended worker counts as held by the kernel
HELD = "threads of it hang in kernel calls"


class GuestStopPolicy(enum.StrEnum):
    """Effect of a stop signal while guests use a mount that is not kept."""

    REFUSE = "refuse"
    UNMOUNT = "unmount"


@dataclasses.dataclass(frozen=True)
class Inheritance:
    """The objects that a worker gets from its supervisor."""

    connection: fuse_connection.MountConnection
    ready: Callable[[], None]


class Daemon(Protocol):
    """The program that a supervisor runs."""

    def run_worker(self, inheritance: Inheritance) -> None:
        """Serve the mount until SIGTERM, in the worker's process."""

    def notify_ready(self) -> None:
        """Tell the service manager that the first worker serves."""

    def reload(self) -> None:
        """Reload the configuration of this process, on SIGHUP before the worker's."""


class Supervisor:
    """One mount and its worker."""

    def __init__(
        self,
        mount_point: pathlib.Path,
        daemon: Daemon,
        store: fd_store.FdStore | None = None,
        with_guests: GuestStopPolicy = GuestStopPolicy.REFUSE,
    ) -> None:
        self._mount_point = mount_point
        self._store = store or fd_store.NoStore()
        self._connection: fuse_connection.MountConnection | None = None
        self._is_stored = False
        self._renewed_s = -RENEW_S
        self._relay: fuse_relay.Relay | None = None
        self._is_mounted = True
        self._with_guests = with_guests
        self._daemon = daemon
        self._alarm_s = math.inf
        self._worker_pid = 0
        self._stopping = False
        self._is_stop_pending = self._is_deciding = False
        self._was_ready = False
        self._logged_users = ""
        self._held: list[int] = []  # ended workers of which the kernel still holds threads

    def run(self) -> int:
        """Mount, run workers until SIGTERM or SIGINT, unmount; return an exit status.

        :raises errors.Unusable: the mount point cannot be used
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
        connection = self._connection = self._connect()
        if not fuse_init.can_resend(connection.record.mounted.init_request):
            self._relay = fuse_relay.Relay(connection)
        for number in STOPS:
            signal.signal(number, self._handle_stop)
        signal.signal(signal.SIGALRM, self._handle_alarm)
        signal.signal(signal.SIGHUP, self._handle_reload)
        try:
            return self._keep_worker(connection)
        finally:
            self._disconnect(connection)

    def _connect(self) -> fuse_connection.MountConnection:
        """Take back the kept connection, if its mount exists, without access to it; or mount.

        :raises errors.Unusable: mounting failed, or guests use a mount that cannot be served here
        """
        point = str(self._mount_point)
        connection = self._take(point)
        if connection and fuse_connection.is_connected(connection.fuse_fd):
            try:
                fuse_connection.check_visible(point)
            except errors.Unusable:
                connection.close()
                raise
            LOG.info("%s: taking over the mount that was kept", point)
            self._is_stored = True
            return connection
        if connection:
            connection.close()
            self._store.drop_connection()
        if fuse_connection.mounted_type(point) is None:
            folders.make_folder(self._mount_point)  # creating it accesses the mount
        made = fuse_connection.mount(point)
        self._is_stored = self._store.store_connection(made)
        return made

    def _take(self, point: str) -> fuse_connection.MountConnection | None:
        try:
            return self._store.take_connection()
        except fuse_connection.UnsupportedMountError as e:
            try:
                if not fuse_connection.unmount_unused(point, e.fuse_fd):
                    raise
            finally:
                os.close(e.fuse_fd)
            LOG.warning("%s; not in use; releasing it", e)
            self._store.drop_connection()
            return None

    def _disconnect(self, connection: fuse_connection.MountConnection) -> None:
        if self._relay:
            self._relay.end_relay()
        point = str(self._mount_point)
        is_left = False
        if self._is_mounted and self._is_stored:
            is_left = not fuse_connection.unmount_unused(point, connection.fuse_fd)
        elif self._is_mounted:
            fuse_connection.unmount(point, is_forced=bool(self._held))
        if is_left:
            LOG.warning("%s: guests use it; leaving it to its holder", point)
        else:
            self._store.drop_connection()
        connection.close()

    def _handle_stop(self, number: int, frame: object) -> None:
        """Stop if no guest uses the mount; a signal during this check repeats it."""
        self._is_stop_pending = True
        while self._is_stop_pending and not (self._stopping or self._is_deciding):
            self._is_stop_pending, self._is_deciding = False, True
            if self._may_stop():
                self._stop()
            self._is_deciding = False

    def _may_stop(self) -> bool:
        why = self._store.stop_reason()
        self._renew()
        leaves_it = self._is_stored and why is fd_store.StopReason.SIGNALLED
        if (
            leaves_it
            or why is fd_store.StopReason.HOST_STOPS
            or self._with_guests is GuestStopPolicy.UNMOUNT
        ):
            return True
        point = str(self._mount_point)
        if self._connection and fuse_connection.unmount_unused(point, self._connection.fuse_fd):
            self._is_mounted = False
            return True
        self._refuse(point, why)
        return False

    def _renew(self) -> None:
        self._renewed_s = time.monotonic()
        if self._connection:
            was_stored = self._is_stored
            self._is_stored = self._store.verify_stored(self._connection, was_stored)
            if self._is_stored and not was_stored:
                self._signal_worker(child_process.MOUNT_STORED)

    def _signal_worker(self, number: int) -> None:
        if self._worker_pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._worker_pid, number)

    def _refuse(self, point: str, why: fd_store.StopReason) -> None:
        users = open_files.describe(open_files.users_of(point))
        if why is fd_store.StopReason.UNIT_STOPS:
            self._store.wait_longer(f"stops once no process uses {point}: {users}")
            self._set_alarm(RECHECK_S)
            if users == self._logged_users:
                return
            LOG.error("%s is in use; the agent stops when it is released: %s", point, users)
        else:
            LOG.error("%s is in use; the agent keeps running: %s", point, users)
        self._logged_users = users

    def _set_alarm(self, after_s: float) -> None:
        self._alarm_s = time.monotonic() + after_s
        signal.setitimer(signal.ITIMER_REAL, after_s)

    def _is_alarm_over(self) -> bool:
        """Return whether our timer expired; other SIGALRMs are ignored."""
        return time.monotonic() >= self._alarm_s - ALARM_EARLY_S

    def _handle_alarm(self, number: int, frame: object) -> None:
        if not self._is_alarm_over():
            return
        self._alarm_s = math.inf
        if self._stopping:
            LOG.warning("worker %d does not stop; killing it", self._worker_pid)
            self._signal_worker(signal.SIGKILL)
        else:
            self._handle_stop(number, frame)

    def _handle_reload(self, number: int, frame: object) -> None:
        self._daemon.reload()
        self._signal_worker(signal.SIGHUP)

    def _stop(self) -> None:
        self._stopping = True
        self._signal_worker(signal.SIGTERM)
        self._set_alarm(STOP_WAIT_S)

    def _keep_worker(self, connection: fuse_connection.MountConnection) -> int:
        failures = 0  # in a row
        while True:
            started_s = time.monotonic()
            try:
                worker, ready_read = self._start(connection)
            except OSError as e:
                LOG.error("no worker can be started (%s); trying again", e.strerror)
            else:
                pid = self._worker_pid
                status = self._one_worker(worker, ready_read)
                if self._stopping:
                    return 0
                how = HELD if status is None else _how(status)
                code = None if status is None else os.waitstatus_to_exitcode(status)
                if code == child_process.EXIT_UNUSABLE and not self._was_ready:
                    return 1
                LOG.error("worker %d ended (%s); starting another", pid, how)
            if time.monotonic() - started_s > STEADY_AFTER_S:
                failures = 0
            delay_s = backoff.pause_s(failures - 1, *RESTART_PAUSE_S) if failures else 0.0
            if self._has_come(signal.sigtimedwait(BLOCKED_SIGNALS, delay_s)) and self._may_stop():
                return 0
            failures += 1

    def _has_come(self, found: signal.struct_siginfo | None) -> bool:
        return found is not None and (found.si_signo in STOPS or self._is_alarm_over())

    def _start(self, connection: fuse_connection.MountConnection) -> tuple[int, int]:
        self._held = [pid for pid in self._held if os.waitpid(pid, os.WNOHANG)[0] == 0]
        ready_read, ready_write = os.pipe()
        with contextlib.ExitStack() as failed:
            failed.callback(os.close, ready_read)
            with open(ready_write, "wb"), self._relayed(connection) as kernel:
                pid = os.fork()
                if not pid:
                    os.close(ready_read)
                    inherited = Inheritance(kernel, lambda: _report_ready(ready_write))
                    child_process.run_child(
                        lambda: self._daemon.run_worker(inherited), self._is_stored, BLOCKED_SIGNALS
                    )
            failed.callback(os.waitpid, pid, 0)
            failed.callback(os.kill, pid, signal.SIGKILL)
            worker = os.pidfd_open(pid)
            failed.pop_all()
        self._worker_pid = pid
        return worker, ready_read

    def _one_worker(self, worker: int, ready_read: int) -> int | None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED_SIGNALS)
        try:
            return self._follow(worker, ready_read)
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
            self._worker_pid = 0
            os.close(worker)
            os.close(ready_read)

    @contextlib.contextmanager
    def _relayed(
        self, connection: fuse_connection.MountConnection
    ) -> Iterator[fuse_connection.MountConnection]:
        """Yield the worker's connection: the relay's socket if there is a relay."""
        if self._relay is None:
            yield connection
            return
        try:
            end = self._relay.connect()
        except OSError:
            LOG.error("the relay ended; the next one continues its requests")
            self._relay.end_relay()
            self._relay = fuse_relay.Relay(connection)
            end = self._relay.connect()
        with end:
            yield connection._replace(fuse_fd=end.fileno())

    def _follow(self, worker: int, ready_read: int) -> int | None:
        poll = select.poll()
        poll.register(worker, select.POLLIN)
        poll.register(ready_read, select.POLLIN)
        looks = 0
        while looks < HELD_CHECKS:
            found = {fd for fd, _ in poll.poll(1000 * HELD_CHECK_S)}
            if time.monotonic() - self._renewed_s >= RENEW_S:
                self._renew()
            if ready_read in found:
                poll.unregister(ready_read)
                if os.read(ready_read, 1) and not self._was_ready:
                    self._was_ready = True
                    self._daemon.notify_ready()
            if worker in found:
                pid, self._worker_pid = self._worker_pid, 0
                return os.waitpid(pid, 0)[1]
            looks = looks + 1 if not found and process_cleanup.has_ended(self._worker_pid) else 0
        self._held.append(self._worker_pid)
        self._strip(self._worker_pid)
        return None

    def _strip(self, pid: int) -> None:
        """Close sockets and free memory of a worker that cannot exit."""
        shut, is_freed = process_cleanup.shut_sockets(pid), process_cleanup.free_memory(pid)
        memory = "freed" if is_freed else "not freed"
        LOG.warning("worker %d: %s; %d sockets shut, memory %s", pid, HELD, shut, memory)


def _report_ready(pipe: int) -> None:
    os.write(pipe, b"r")
    os.close(pipe)


def _how(wait_status: int) -> str:
    code = os.waitstatus_to_exitcode(wait_status)
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
