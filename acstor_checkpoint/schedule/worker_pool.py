# SPDX-License-Identifier: Apache-2.0
"""Worker threads that take checkpoints of this host's servers; a server has at most one.

Servers whose last attempt failed or was delayed share RETRY_WORKERS, so that others do not wait.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Final
from typing import Protocol

from acstor_checkpoint.capture import disk_states
from acstor_checkpoint.capture import snapshot_window
from acstor_checkpoint.capture.domains import domain_xml
from acstor_checkpoint.holders import checkpoint_record
from acstor_checkpoint.holders import holder_group
from acstor_checkpoint.schedule import failures
from acstor_checkpoint.schedule import nova_intervals
from acstor_checkpoint.schedule import server_schedule
from acstor_common import errors
from acstor_common.model import clocks
from acstor_common.model import ids
from acstor_common.util import log_once
from acstor_common.util import supervision
from acstor_common.wire import checkpoint_messages as messages

LOG = logging.getLogger(__name__)

WORKERS: Final = 4  # each has at most two manifests in memory: 80 MiB for 2 million entries
RETRY_WORKERS: Final = 2
FAILURES: Final = "checkpoint"  # name of servers' failures in :mod:`supervision`
LOOK_EVERY_S: Final = 10.0  # delay until a new server or a request is noticed


class Domains(Protocol):
    """Lists the servers of this host."""

    def list_servers(self) -> domain_xml.ServerList:
        """Return the servers, or raise Unusable."""


class CheckpointTaker(Protocol):
    """Takes one checkpoint of one server; thread-safe."""

    def take_checkpoint(
        self, server: domain_xml.Server, interval_s: int
    ) -> checkpoint_record.CheckpointRecord:
        """Take and register it (``interval_s`` 0: the server has none), or raise AcstorError."""

    def clean_up(self, server: domain_xml.Server) -> None:
        """End jobs of a former daemon, or raise AcstorError."""


class WorkerPool:
    """The schedule and the workers' loop; public methods are thread-safe."""

    def __init__(
        self,
        domains: Domains,
        taker: CheckpointTaker,
        states: disk_states.DiskStates,
        default_s: int,
        clock: clocks.Clock = time,
        fetch_intervals: nova_intervals.FetchIntervals | None = None,
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        self._look_every_s = look_every_s
        self._domains, self._taker, self._states = domains, taker, states
        self._schedule = server_schedule.ServerSchedule(default_s)
        self._intervals = nova_intervals.NovaIntervals(fetch_intervals, clock)
        self._clock = clock
        self._lock, self._refreshing = threading.Lock(), threading.Lock()
        self._woken = threading.Event()
        self._has_ended = False
        self._refresh_s = clock.monotonic()
        self._present: domain_xml.ServerList | None = None
        self._cleared: set[ids.ImageId] = set()
        self._running: dict[ids.ImageId, float] = {}
        self._held: dict[ids.ImageId, Callable[[], None]] = {}
        self._faults = log_once.LogOnce(LOG)
        self.failures = failures.Failures()

    def run(self) -> None:
        """Run one worker until :meth:`stop`; finish its current checkpoint."""
        while not self._has_ended:
            if not self.run_turn():
                self._woken.wait(self._look_every_s)
                if not self._has_ended:
                    self._woken.clear()

    def stop(self) -> None:
        """Make :meth:`run` return."""
        self._has_ended = True
        self._woken.set()

    def request_checkpoint(self, instance: ids.ImageId) -> int:
        """Schedule a server next; return the number of its last started checkpoint.

        Later numbers have snapshots after this call.  Unusable: it has no checkpoints here.
        """
        with self._lock:
            is_here = self._schedule.has_server(instance)
        if not is_here:  # it may be new
            self._update_schedule(self._domains.list_servers(), self._intervals.last)
        state = self._states.load(instance)  # first: the requested checkpoint may begin at once
        with self._lock:
            self._schedule.prioritize(instance, self._clock.monotonic())
        self._woken.set()
        return state.number if state else 0

    def interval_s(self, instance: ids.ImageId) -> int:
        """Return a server's interval in seconds; 0: never."""
        with self._lock:
            return self._schedule.every_s(instance)

    def overdue_s(self) -> dict[ids.ImageId, float]:
        """Return for how long servers are overdue."""
        with self._lock:
            return self._schedule.overdue_s(self._clock.monotonic())

    def running_captures_s(self) -> dict[ids.ImageId, float]:
        """Return for how long checkpoints have been running."""
        with self._lock:
            return {
                instance: self._clock.monotonic() - began_s
                for instance, began_s in self._running.items()
            }

    def list_servers(self) -> frozenset[ids.ImageId] | None:
        """Return the servers that are or may be on this host; None while libvirt fails."""
        with self._lock:
            present = self._present
        return None if present is None else present.instances()

    @contextlib.contextmanager
    def hold_server(
        self, instance: ids.ImageId, end_block: Callable[[], None] = lambda: None
    ) -> Iterator[bool]:
        """Block a server's checkpoints; see :meth:`garbage_collection.Servers.hold_server`."""
        with self._lock:
            is_held = instance not in self._running and instance not in self._held
            if is_held:
                self._held[instance] = end_block
        try:
            yield is_held
        finally:
            if is_held:
                with self._lock:
                    del self._held[instance]
                self._woken.set()

    def run_turn(self) -> bool:
        """Do the next due work for one server; return whether there was any."""
        self._refresh()
        with self._lock:
            found = self._next()
            if found is None:
                return False
            server, work = found
            self._running[server.instance] = self._clock.monotonic()
        try:
            work(server)
        finally:
            with self._lock:
                del self._running[server.instance]
        return True

    def _next(self) -> tuple[domain_xml.Server, Callable[[domain_xml.Server], None]] | None:
        for instance, end_block in self._held.items():
            if self._schedule.is_due(instance, self._clock.monotonic()):
                end_block()
        busy = self._running.keys() | self._held.keys()
        for server in self._present.servers if self._present else ():
            if server.instance not in self._cleared and server.instance not in busy:
                return server, self._clear
        may_retry = sum(map(self._schedule.is_retried, self._running)) < RETRY_WORKERS
        due = self._schedule.next_server(self._clock.monotonic(), busy, may_retry=may_retry)
        return None if due is None else (due, self._try)

    def _refresh(self) -> None:
        if self._clock.monotonic() < self._refresh_s or not self._refreshing.acquire(
            blocking=False
        ):
            return
        try:
            present = self._query_servers()
            self._refresh_s = self._clock.monotonic() + self._look_every_s
        finally:
            self._refreshing.release()
        with self._lock:
            self._present = present
            self._cleared &= present.instances() if present else frozenset()

    def _query_servers(self) -> domain_xml.ServerList | None:
        try:
            # First: reports failures even if libvirt fails.
            intervals = self._intervals.current_intervals(self._failing())
            present = self._domains.list_servers()
            self._update_schedule(present, intervals)
        except Exception as e:
            self._faults.log_warning(str(e))
            if _counted(e):
                LOG.exception("the servers of this host are unknown now")
            return None
        self._faults.log_warning("")
        return present

    def _failing(self) -> list[messages.Failing]:
        """Return failures to report, with undescribed servers that had checkpoints here."""
        with self._lock:
            undescribed = self._present.undescribed if self._present else frozenset()
        known = sorted(undescribed.intersection(self._states.list_instances()))
        return [
            *self.failures.failing_servers(self.list_servers()),
            *(messages.Failing(instance, failures.UNDESCRIBED) for instance in known),
        ]

    def _update_schedule(
        self, present: domain_xml.ServerList, intervals: nova_intervals.Intervals
    ) -> None:
        with self._lock:
            self._schedule.set_servers(
                present.servers, self._clock.monotonic(), self._age_s, intervals
            )

    def _clear(self, server: domain_xml.Server) -> None:
        try:
            self._taker.clean_up(server)
        except Exception as e:
            LOG.warning(
                "server %s: its previous checkpoint job did not end: %s",
                server.instance,
                e,
                exc_info=_counted(e),
            )
        with self._lock:
            self._cleared.add(server.instance)

    def _try(self, server: domain_xml.Server) -> None:
        instance, began_s = server.instance, self._clock.monotonic()
        try:
            record = self._taker.take_checkpoint(server, self.interval_s(instance))
        except snapshot_window.PartialCapture as e:
            self._note_part(instance, e)
        except Exception as e:
            self._note_failure(instance, e)
        else:
            self._note_success(record, began_s)

    def _note_part(self, instance: ids.ImageId, part: snapshot_window.PartialCapture) -> None:
        with self._lock:  # others first: a busy guest must not block them
            self._schedule.record_part(instance, self._clock.monotonic())
        self.failures.note_wait(instance, part.slow_holder)
        if isinstance(part, snapshot_window.Overwritten):
            self.failures.count_failure(instance, part)
        LOG.info("server %s: %s", instance, part)

    def _note_failure(self, instance: ids.ImageId, e: Exception) -> None:
        is_replaced = isinstance(e, holder_group.HolderFailed)
        with self._lock:
            pause_s = self._schedule.record_failure(
                instance, self._clock.monotonic(), is_replaced=is_replaced
            )
        self.failures.count_failure(instance, e)
        why = "server %s: no checkpoint: %s; tried again in %.0f s"
        LOG.warning(why, instance, e, pause_s, exc_info=_counted(e))

    def _note_success(self, record: checkpoint_record.CheckpointRecord, began_s: float) -> None:
        instance = record.instance_id
        with self._lock:
            self._schedule.record_success(
                instance, began_s, record.interval_s, was_delayed=bool(record.slow_holder)
            )
        self.failures.note_success(instance)
        self.failures.note_wait(instance, record.slow_holder)
        LOG.info(
            "server %s: checkpoint %s, %d bytes read, %d sent, in %.1f s%s%s",
            instance,
            record.checkpoint_id,
            record.read_bytes,
            record.sent_bytes,
            self._clock.monotonic() - began_s,
            f"; full, because {record.full_read_reason}" if record.full_read_reason else "",
            f"; the others waited for {record.slow_holder}" if record.slow_holder else "",
        )

    def _age_s(self, instance: ids.ImageId) -> float | None:
        """Return the last checkpoint's age by the wall clock, possibly negative."""
        state = self._states.load(instance)
        if state is None or not state.taken_ms:
            return None
        return self._clock.time() - state.taken_ms / 1000


def _counted(e: Exception) -> bool:
    """Count a failure of one server; return whether it is a defect."""
    supervision.count_failure(FAILURES)
    return not _is_known(e)


def _is_known(e: Exception) -> bool:
    return isinstance(e, errors.AcstorError | OSError)
