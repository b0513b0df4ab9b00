# SPDX-License-Identifier: Apache-2.0
"""What is done after a fault of the core itself: an event has raised, and some of it is half done.

What is half done ends, with all who wait for it, and nothing else does.  *Whole* is a transfer of
which something will tell what becomes of it: an attempt that its peer owes, a read that the source
is still to tell of, a pause, a search, a turn in a lane.  What others count (what peers owe, what
is read, places) is counted anew.  So all is looked at, which faults alone are worth.
"""

from acstor_agent.core.transfers import transfer as transfer_
from acstor_agent.core.transfers.fetching import parts as parts_
from acstor_agent.core.transfers.fetching import waiters as waiters_
from acstor_agent.core.transfers.giving import requests as requests_

Attempt = transfer_.Attempt
Track = transfer_.Track
Transfer = transfer_.Transfer


class Mending:
    """See above."""

    def __init__(
        self, parts: parts_.Parts, waiters: waiters_.Waiters, requests: requests_.Requests
    ) -> None:
        self._parts, self._waiters, self._requests = parts, waiters, requests

    def mend(self, why: str) -> None:
        """End what is half done.

        :param why: what to tell those of this host who wait for it
        """
        parts = self._parts
        parts.kept.clear()  # whether they will be stored nobody knows
        parts.sources.mend()
        for transfer in parts.transfers.values():
            transfer.askers = {a: None for a in transfer.askers if self._requests.holds(a)}
        self._waiters.mend(self._is_whole, why)
        parts.asking.mend(self._is_awaited, parts.now)
        self._requests.mend()
        for transfer in list(parts.transfers.values()):
            parts.drop_if_done(transfer)

    def _is_whole(self, transfer: Transfer) -> bool:
        attempts, read, relay = transfer.attempts, transfer.read, transfer.relay
        if transfer.is_foreseen and self._parts.settings.learns_ring:
            return True  # the time of those who wait ends
        if transfer.is_idle or (transfer.is_travelling and not attempts):
            return False
        if not all(map(self._is_under_way, attempts if relay is None else (*attempts, relay))):
            return False
        if read is not None and not self._parts.sources.holds(read):
            return False
        is_read_through = read is not None or relay is not None
        if transfer.askers and not (is_read_through or transfer.is_travelling):
            return False
        return self._comes(transfer) or (is_read_through and not transfer.waiters)

    def _comes(self, transfer: Transfer) -> bool:
        """Say whether who of this host waits for a transfer will be told what becomes of it."""
        waiters = self._waiters
        if transfer.retry is not None:
            return waiters.retries.holds(transfer.retry)
        if transfer.search is not None:
            return waiters.searches.holds(transfer.search)
        return transfer.is_travelling or waiters.lanes.holds(transfer)

    def _is_under_way(self, attempt: Attempt) -> bool:
        """Say whether something will be told of an attempt."""
        transfer = attempt.transfer
        if attempt.is_over:
            return False
        if attempt.host is None:
            return transfer.read is not None or transfer.relay is not None
        peer = self._parts.book.get(attempt.host)
        return peer is not None and peer.asks.get(attempt.number) is attempt

    def _is_awaited(self, attempt: Attempt) -> bool:
        """Say whether anybody waits for an attempt that its peer owes."""
        transfer = attempt.transfer
        if self._parts.transfers.get(transfer.key) is not transfer:
            return attempt.track is Track.TRIAL
        search = transfer.search
        return (
            attempt.track is Track.TRIAL
            or attempt in transfer.attempts
            or attempt is transfer.relay
            or (search is not None and attempt in search.attempts)
        )
