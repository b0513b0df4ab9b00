# SPDX-License-Identifier: Apache-2.0
"""Pauses between retries of guests' chunks; due retries take turns by image, after new guests."""

import collections
import itertools
from collections.abc import Iterator

from acstor_agent.engine import priority
from acstor_agent.engine import transfer
from acstor_agent.engine.data_structures import fair_queue
from acstor_agent.engine.data_structures import timers
from acstor_common.model import ids
from acstor_common.util import backoff

RETRY_FIRST_S, RETRY_LONGEST_S = 0.1, 2.0  # first and longest pause of a chunk
PER_S = 200  # fetches a second that all retries together start
AT_ONCE = 20  # retries at once after an idle period
WOKEN = 8  # oldest pauses that end when a retried chunk arrives, so retries follow the answers

GUEST, AGAIN = priority.Priority.GUEST, priority.Priority.PREFETCH


class Pause:
    """The pause of a transfer."""

    __slots__ = ("image_id", "queued_as", "transfer")

    def __init__(self, transfer: transfer.Transfer) -> None:
        self.transfer = transfer
        self.image_id = transfer.first_ref.image_id  # its flow when due
        self.queued_as: priority.Priority | None = None  # its priority once it is due


class Retries:
    """Pausing transfers, oldest first; ``due`` are those to retry as the rate allows."""

    def __init__(self, deadlines: timers.Timers) -> None:
        self._deadlines = deadlines
        self._waiting: collections.OrderedDict[Pause, None] = collections.OrderedDict()
        self.due: fair_queue.FairQueue[Pause] = fair_queue.FairQueue()
        self._next_s = 0.0  # earliest time of the next retry
        self._timer_s = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def pause_transfer(self, transfer: transfer.Transfer, now: float) -> None:
        """Start the pause of a transfer."""
        pause = Pause(transfer)
        self._deadlines.set_timer(
            now + backoff.pause_s(transfer.tries, RETRY_FIRST_S, RETRY_LONGEST_S),
            timers.Due.RETRY,
            pause,
        )
        transfer.retry = pause
        self._waiting[pause] = None

    def pause_ended(self, pause: Pause | None) -> None:
        """End a pause: queue its transfer for retry."""
        if pause is not None and pause in self._waiting and pause.queued_as is None:
            self._put(pause, AGAIN, pause.image_id)

    def retry_now(self, transfer: transfer.Transfer, image_id: ids.ImageId) -> None:
        """End a pause with priority, because a new guest requests the chunk."""
        pause: Pause = transfer.retry
        if pause.queued_as is not GUEST:
            if pause.queued_as is not None:
                self.due.remove(pause.queued_as, pause.image_id, pause)
            self._put(pause, GUEST, image_id)

    def _put(self, pause: Pause, queued_as: priority.Priority, image_id: ids.ImageId) -> None:
        self.due.put_item(queued_as, image_id, pause)
        pause.queued_as, pause.image_id = queued_as, image_id

    def take_due(self, now: float) -> Iterator[transfer.Transfer]:
        """Yield the transfers to retry now; set a timer for the rest."""
        self._next_s = max(self._next_s, now - AT_ONCE / PER_S)
        while self.due and self._next_s <= now:
            pause = self.due.take_next()
            assert pause is not None
            self._next_s += 1 / PER_S
            del self._waiting[pause]
            pause.transfer.retry = None
            pause.transfer.tries += 1
            yield pause.transfer
        if self.due and not now < self._timer_s:
            self._timer_s = self._next_s
            self._deadlines.set_timer(self._next_s, timers.Due.RETRY, None)

    def forget_transfer(self, transfer: transfer.Transfer) -> None:
        """End a pause without retry."""
        pause: Pause = transfer.retry
        if pause.queued_as is not None:
            self.due.remove(pause.queued_as, pause.image_id, pause)
        transfer.retry = None
        self._waiting.pop(pause, None)

    def is_waiting(self, pause: Pause) -> bool:
        """Return whether a transfer will be retried."""
        return pause in self._waiting

    def chunk_became_available(self) -> None:
        """End the oldest pauses, because a chunk that had failed before has arrived."""
        for pause in list(itertools.islice(self._waiting, WOKEN)):
            self._waiting.move_to_end(pause)
            self.pause_ended(pause)
        self._next_s -= WOKEN / PER_S
