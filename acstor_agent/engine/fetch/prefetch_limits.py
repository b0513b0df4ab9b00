# SPDX-License-Identifier: Apache-2.0
"""Limits for fetches that no guest waits for: so many chunks at a time for each priority.

Prefetches queue here, image by image, and not at peers, where they would delay guests.  Nothing
is prefetched while the cache is full or behind with its writes.
"""

from collections.abc import Iterable
from collections.abc import Iterator

from acstor_agent.engine import fair_queue
from acstor_agent.engine import priority
from acstor_agent.engine import transfer

Priority = priority.Priority
Transfer = transfer.Transfer

ADVERTISED_AT_A_TIME = 4
"""Enough to fill a link, few enough that what is asked last is not asked of hosts that were free a
moment ago."""
WISHES = 1024
"""Of one image, that wait in a lane of mere guesses; of more the oldest is forgotten.  What
somebody decided to fetch waits, however much it is: he gives it in batches."""
GUESSES = frozenset({Priority.SOON, Priority.ADVERTISED})
LANES = (Priority.SOON, Priority.SEED, Priority.FLATTEN, Priority.ADVERTISED, Priority.WHOLE)


class PrefetchLimits:
    """Lanes for SOON, SEED, FLATTEN, ADVERTISED and WHOLE.

    :param limit: chunks at a time in each; a transfer that has begun may exceed it
    :ivar waiting: those that have not begun
    """

    def __init__(self, limit: int) -> None:
        self.has_room = True
        self._limits = dict.fromkeys(LANES, limit)
        self._limits[Priority.ADVERTISED] = min(limit, ADVERTISED_AT_A_TIME)
        self._left = self._limits.copy()  # that may begin
        self.waiting: fair_queue.FairQueue[Transfer] = fair_queue.FairQueue()
        self.under_way = 0

    def __len__(self) -> int:
        """Return how many wait."""
        return self.waiting.length

    def put(self, transfer: Transfer, lane: Priority) -> Transfer | None:
        """Let a transfer wait in a lane; return the one that is forgotten, if there is one."""
        image_id = transfer.want.image_id
        transfer.lane, transfer.lane_of = lane, image_id
        if self.waiting.put_item(lane, image_id, transfer) <= WISHES or lane not in GUESSES:
            return None
        oldest = self.waiting.take_of(lane, image_id)
        assert oldest is not None
        oldest.lane = None
        return oldest

    def remove_transfer(self, transfer: Transfer) -> None:
        """Take a transfer out of its lane: it has ended, or does not need one any more."""
        lane = transfer.lane
        if lane is not None and not self.waiting.remove(lane, transfer.lane_of, transfer):
            self._left[lane] += transfer.count
            self.under_way -= transfer.count
        transfer.lane = None

    def divide_transfer(self, transfer: Transfer, part: Transfer) -> None:
        """Let a part of a transfer wait, if the other does."""
        if transfer.lane is not None and self.is_queued(transfer):
            self.waiting.put_item(transfer.lane, transfer.lane_of, part)

    def is_queued(self, transfer: Transfer) -> bool:
        """Say whether a transfer waits in its lane."""
        lane = transfer.lane
        return lane is not None and self.waiting.is_queued(lane, transfer.lane_of, transfer)

    def recount_running(self, transfers: Iterable[Transfer]) -> None:
        """Count anew what has begun, among all that is under way: a fault has left it so."""
        begun = [t for t in transfers if t.lane is not None and not self.is_queued(t)]
        for lane, limit in self._limits.items():
            self._left[lane] = limit - sum([t.count for t in begun if t.lane is lane])
        self.under_way = sum([t.count for t in begun])

    def start_queued(self) -> Iterator[Transfer]:
        """Yield the transfers that may begin now; each counts from then on."""
        for lane in LANES:
            while self.has_room and self._left[lane] > 0:
                transfer = self.waiting.take_of(lane)
                if transfer is None:
                    break
                self._left[lane] -= transfer.count
                self.under_way += transfer.count
                yield transfer
