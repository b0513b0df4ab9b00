# SPDX-License-Identifier: Apache-2.0
"""Broadcast lookup: asks every host for a chunk that the source denies.

Former homes, and hosts that read the source themselves, may hold it. A chunk of an image is lost
only when every host in the v-node table has denied it, and the source, which may deny wrongly, has
denied the image for ``lost_after_s``. A silent or departed host, or one in backoff, may hold it.
"""

from acstor_agent.engine import chunk_ref
from acstor_agent.engine import failure
from acstor_agent.engine import priority
from acstor_agent.engine import transfer
from acstor_agent.engine.data_structures import fair_queue
from acstor_agent.engine.data_structures import negative_cache
from acstor_agent.engine.data_structures import timers
from acstor_agent.engine.fetch import context
from acstor_common.model import ids
from acstor_common.wire.peer import peer_request

Attempt = transfer.Attempt
Track = transfer.Track
Transfer = transfer.Transfer

Failure = failure.Failure
GUEST = priority.Priority.GUEST

MAX_HOSTS_ASKED = 16  # hosts that are asked for a chunk at a time
MAX_LOOKUPS = 4  # concurrent lookups; others queue, image by image
HOLD_S_PER_HOST = 0.004
"""Seconds per asked host for which a failed lookup keeps its slot: this host asks at most 1000
times a second, whatever guests of a missing image read."""
MAX_NAMED = 3  # silent hosts that an error names at most


class BroadcastLookup:
    """One lookup."""

    __slots__ = ("asked", "attempts", "departed", "has_slot", "ref", "silent", "to_ask", "transfer")

    def __init__(self, transfer: Transfer, ref: chunk_ref.ChunkRef) -> None:
        self.transfer, self.ref = transfer, ref
        self.attempts: list[Attempt] = []
        self.to_ask: list[ids.HostId] = []  # not asked yet
        self.silent: list[ids.HostId] = []
        self.departed: list[ids.HostId] = []
        self.asked = 0
        self.has_slot = False


class BroadcastLookups:
    """The lookups of this host."""

    def __init__(self, context: context.Context, failures: context.FetchFailures) -> None:
        self._context, self._failures = context, failures
        self.image_denials = negative_cache.NegativeCache(context.settings.lost_after_s)
        self._denials: negative_cache.HostDenials[tuple[ids.Cid, ids.ImageId]] = (
            negative_cache.HostDenials()
        )
        self._waiting: fair_queue.FairQueue[BroadcastLookup] = fair_queue.FairQueue()
        self._free_slots = MAX_LOOKUPS

    def start_lookup(self, transfer: Transfer, ref: chunk_ref.ChunkRef) -> None:
        """Queue a lookup of a chunk under an image for which the source denied it."""
        lookup = transfer.lookup = BroadcastLookup(transfer, ref)
        self._waiting.put_item(GUEST, ref.image_id, lookup)
        self._start()

    def release_slot(self) -> None:
        """Free the slot of a failed lookup, and start the next."""
        self._free_slots += 1
        self._start()

    def _start(self) -> None:
        while self._free_slots and (lookup := self._waiting.take_next()) is not None:
            self._free_slots -= 1
            lookup.has_slot = True
            context, ref = self._context, lookup.ref
            hosts = context.ring.other_hosts()
            lookup.departed = self.image_denials.departed_hosts(hosts, context.now)
            left = self._denials.hosts_to_ask((ref.cid, ref.image_id), hosts, context.now)
            in_backoff = context.peers.list_backoffs(context.now)
            lookup.asked = len(left)
            lookup.silent = [host for host in left if host in in_backoff]
            lookup.to_ask = [host for host in left if host not in in_backoff]
            self._ask_more(lookup)

    def _ask_more(self, lookup: BroadcastLookup) -> None:
        context = self._context
        mode, track = peer_request.Mode.HELD_ONLY, Track.LOOKUP
        while lookup.to_ask and len(lookup.attempts) < MAX_HOSTS_ASKED:
            refs = (lookup.ref,)
            what = (lookup.transfer, lookup.to_ask.pop(), mode, refs, track, context.now)
            lookup.attempts.append(context.requests_out.send_or_queue(*what))
        if not lookup.attempts:
            self._end(lookup)

    def attempt_failed(self, attempt: Attempt, failure: Failure) -> None:
        """Record the answer of a host, and ask the next."""
        lookup: BroadcastLookup | None = attempt.transfer.lookup
        if lookup is None or attempt not in lookup.attempts:
            return
        assert attempt.host is not None
        lookup.attempts.remove(attempt)
        if failure is Failure.MISSING:
            what = lookup.ref.cid, lookup.ref.image_id
            self._denials.record_denial(what, attempt.host, self._context.now)
        else:
            lookup.silent.append(attempt.host)
        self._ask_more(lookup)

    def end_lookup(self, transfer: Transfer) -> None:
        """End a lookup, because the chunk arrived or has no readers."""
        lookup: BroadcastLookup | None = transfer.lookup
        if lookup is None:
            return
        self._waiting.remove(GUEST, lookup.ref.image_id, lookup)
        transfer.lookup = None
        for attempt in lookup.attempts:
            self._context.requests_out.cancel_attempt(attempt, self._context.now)
        if lookup.has_slot:
            self.release_slot()

    def is_active(self, lookup: BroadcastLookup) -> bool:
        """Return whether a lookup has pending requests or is queued."""
        is_next = self._waiting.is_queued(GUEST, lookup.ref.image_id, lookup)
        return bool(lookup.attempts) or is_next

    def recount_slots(self) -> None:
        """Rebuild the count of free slots after a fault."""
        lookups = [t.lookup for t in self._context.transfers.values() if t.lookup is not None]
        self._free_slots = MAX_LOOKUPS - sum(lookup.has_slot for lookup in lookups)
        self._free_slots -= self._context.timers.count_entries(timers.Due.LOOKUP_SLOT)
        self._start()

    def _end(self, lookup: BroadcastLookup) -> None:
        transfer, context = lookup.transfer, self._context
        free_s = context.now + HOLD_S_PER_HOST * lookup.asked
        context.timers.set_timer(free_s, timers.Due.LOOKUP_SLOT, None)
        transfer.lookup = None
        more_s = self.image_denials.record_denial(lookup.ref.image_id, context.now)
        silent = [*lookup.silent, *lookup.departed]
        failure, why, lost_in_s = Failure.UNREACHABLE, "", 0.0
        if silent:
            named = ", ".join([*silent[:MAX_NAMED], "…"] if len(silent) > MAX_NAMED else silent)
            why = f"the source does not have it, and these hosts, which may, do not answer: {named}"
        elif context.settings.has_others and not context.ring.table.epoch:
            why = "the source does not have it, and there is no v-node table yet"
        elif more_s:
            why = f"no host or source has it; it is lost if none has it in {more_s:.0f} s"
            lost_in_s = more_s
        else:
            failure, why = Failure.LOST, "the source and all other hosts report that they lack it"
        self._failures.lookup_failed(transfer, lookup.ref, failure, why, lost_in_s)
