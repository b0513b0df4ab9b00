# SPDX-License-Identifier: Apache-2.0
"""Looks after requests that wait for long: says what they wait for, and lets the killed end.

A guest's read may wait for hours.  Who reads the log learns of it, and whoever kills the guest's
process is not kept waiting: its requests are answered, with an error that nobody reads any more.

This costs nothing while nothing waits.
"""

import logging
import time
from collections.abc import Callable

import trio

from acstor_agent.core import log_limit
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.core.mount import blocked_requests
from acstor_agent.core.mount import inodes
from acstor_agent.images.read import read_admission
from acstor_agent.mount import killed_guests
from acstor_agent.sources import base

LOG = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
SUSPECT_AFTER_S = 2.0
"""From then on it is looked whether who waits is being killed."""
LATE_S = 5.0
"""From then on a request counts as one that waits for long."""
TELLS_EVERY_S = 60.0


class StuckRequests:
    """The look after the requests of one mount.

    :param table: all requests that wait
    :param known: the numbers by which the kernel knows files and who has opened them
    :param clock: the one by which the table is kept
    """

    def __init__(
        self,
        table: blocked_requests.BlockedRequests,
        known: inodes.Inodes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ended = 0
        """Requests that were ended because who had made them was being killed."""
        self._table, self._known, self._clock = table, known, clock
        self._dying = killed_guests.KilledGuests(known.process_tag)
        self._thread = trio.CapacityLimiter(1)  # its own: others may all hang
        self._asked = trio.CapacityLimiter(1)
        self._telling = trio.Lock()  # what is taken back was told before
        self._told = log_limit.LogLimit(TELLS_EVERY_S)

    async def run(self) -> None:
        """Look after them, for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell)
            nursery.start_soon(self._let_go)

    async def switched_off(self, instance_id: str, is_taken_back: bool = False) -> int:
        """Let the guest of an instance of Nova's that is being switched off wait for nothing more.

        SIGTERM alone does not end a QEMU whose reads wait, and libvirt waits for that for 10 s.

        :param is_taken_back: it stays on after all: its guest waits again
        :returns: how many processes it is
        :raises errors.Unusable: too many are being switched off, or processes cannot be looked at
        """
        async with self._telling:
            if is_taken_back:
                return self._dying.stays_on(instance_id)
            guests = await trio.to_thread.run_sync(
                killed_guests.guests_of, instance_id, abandon_on_cancel=True, limiter=self._asked
            )
            self._dying.switched_off(instance_id, guests, self._clock())
            return len(guests)

    async def _tell(self) -> None:
        while True:
            await trio.sleep(LOOK_EVERY_S)
            now_s = self._clock()
            for file_id, late in self.list_late().items():
                untold = self._told.left_out(file_id, now_s)
                if untold is not None:
                    LOG.warning(
                        "%s: %d requests of guests have waited for up to %.0f s; they go on: %s",
                        file_id,
                        late.count,
                        late.longest_s,
                        late.why or "nobody has answered yet",
                    )

    def list_late(self) -> dict[str, blocked_requests.LateWaits]:
        """Return the images and disks of which requests wait for long, by their ids.

        May be called from any thread.
        """
        found: dict[str, blocked_requests.LateWaits] = {}
        for guest, late in self._table.late_guests(self._clock(), LATE_S).items():
            file_id = guest.name.partition("/")[0]
            known = found.get(file_id)
            found[file_id] = known.joined(late) if known else late
        return found

    async def _let_go(self) -> None:
        while True:
            await trio.sleep(LOOK_EVERY_S)
            now_s = self._clock()
            late = self._table.late_guests(now_s, SUSPECT_AFTER_S)
            if not late:
                continue
            waiters = [waiter for guest in late if (waiter := self._waiter(guest)) is not None]
            for guest in await trio.to_thread.run_sync(
                self._dying.killed_of, waiters, now_s, abandon_on_cancel=True, limiter=self._thread
            ):
                ended = read_admission.fail_requests(self._table, guest, now_s)
                self.ended += ended
                LOG.info("%s is being ended: %d of its requests end", guest, ended)

    def _waiter(self, guest: requests.Stream) -> killed_guests.Waiter | None:
        """Return what to ask of a guest; None if its process cannot be seen from here.

        An image may be open in processes that are not seen either; a disk has one guest.
        """
        file_id, slash, _ = guest.name.partition("/")
        inode, tag = self._known.owner_of(guest)
        if slash and not tag:
            return None
        return killed_guests.Waiter(guest, inode, file_id + base.BlobKind.IMAGE.value, tag)
