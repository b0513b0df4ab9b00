# SPDX-License-Identifier: Apache-2.0
"""Logs requests that wait for long, and fails those of killed guests, which then can exit."""

import dataclasses
import logging
import time

import trio

from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.mount import blocked_requests
from acstor_agent.core.mount import inodes
from acstor_agent.images.read import read_admission
from acstor_agent.mount import killed_guests
from acstor_agent.sources import base
from acstor_common.model import clocks
from acstor_common.util import log_limit

LOG = logging.getLogger(__name__)

LOG_INTERVAL_S = 60.0


@dataclasses.dataclass(frozen=True)
class StuckLimits:
    """Intervals of the watch."""

    check_interval_s: float = 1.0
    suspect_after_s: float = 2.0  # age of a request whose guest is checked for a kill
    late_after_s: float = 5.0  # age of a request that counts as late


class StuckRequests:
    """Watches the requests of one mount."""

    def __init__(
        self,
        table: blocked_requests.BlockedRequests,
        inode_numbers: inodes.Inodes,
        clock: clocks.Clock = time,
        limits: StuckLimits = StuckLimits(),
    ) -> None:
        self.limits = limits
        self.aborted = 0  # requests failed because their process was being killed
        self._table, self._inode_numbers, self._clock = table, inode_numbers, clock
        self._dying = killed_guests.KilledGuests(inode_numbers.process_tag)
        self._thread = trio.CapacityLimiter(1)  # its own: the shared threads may all hang
        self._asked = trio.CapacityLimiter(1)
        self._announcing = trio.Lock()  # a cancellation must follow its power-off
        self._log_limit = log_limit.LogLimit(LOG_INTERVAL_S)

    async def run(self) -> None:
        """Watch the requests until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._log_late_requests)
            nursery.start_soon(self._end_requests_of_killed)

    async def power_off(self, instance_id: str, is_cancelled: bool = False) -> int:
        """Stop blocking an instance that is being powered off; return its number of processes.

        SIGTERM alone does not end a QEMU with blocked reads; libvirt waits for it for 10 s.

        :param is_cancelled: the instance stays on
        :raises errors.Unusable: too many are being powered off, or processes cannot be scanned
        """
        async with self._announcing:
            if is_cancelled:
                return self._dying.cancel_power_off(instance_id)
            guests = await trio.to_thread.run_sync(
                killed_guests.processes_of, instance_id, abandon_on_cancel=True, limiter=self._asked
            )
            self._dying.note_power_off(instance_id, guests, self._clock.monotonic())
            return len(guests)

    async def _log_late_requests(self) -> None:
        while True:
            await trio.sleep(self.limits.check_interval_s)
            now_s = self._clock.monotonic()
            for file_id, late in self.list_late_requests().items():
                unlogged = self._log_limit.take_line(file_id, now_s)
                if unlogged is not None:
                    LOG.warning(
                        "%s: %d requests of guests have waited for up to %.0f s and still wait: %s",
                        file_id,
                        late.count,
                        late.longest_s,
                        late.why or "no answer yet",
                    )

    def list_late_requests(self) -> dict[str, blocked_requests.LateWaits]:
        """Return late requests by image or disk ID; any thread may call it."""
        found: dict[str, blocked_requests.LateWaits] = {}
        for guest, late in self._table.late_guests(
            self._clock.monotonic(), self.limits.late_after_s
        ).items():
            file_id = guest.name.partition("/")[0]
            known = found.get(file_id)
            found[file_id] = known.joined(late) if known else late
        return found

    async def _end_requests_of_killed(self) -> None:
        while True:
            await trio.sleep(self.limits.check_interval_s)
            now_s = self._clock.monotonic()
            late = self._table.late_guests(now_s, self.limits.suspect_after_s)
            if not late:
                continue
            waiters = [waiter for guest in late if (waiter := self._waiter(guest)) is not None]
            for guest in await trio.to_thread.run_sync(
                self._dying.find_killed,
                waiters,
                now_s,
                abandon_on_cancel=True,
                limiter=self._thread,
            ):
                ended = read_admission.fail_requests(self._table, guest, now_s)
                self.aborted += ended
                LOG.info("%s is being killed: %d of its requests were aborted", guest, ended)

    def _waiter(self, guest: requests.Stream) -> killed_guests.WaitingGuest | None:
        """Return a guest's search key; None if unseen processes may have its image open, too."""
        file_id, slash, _ = guest.name.partition("/")
        inode, tag = self._inode_numbers.owner_of(guest)
        if slash and not tag:
            return None
        return killed_guests.WaitingGuest(guest, inode, file_id + base.BlobKind.IMAGE.value, tag)
