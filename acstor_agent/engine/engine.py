# SPDX-License-Identifier: Apache-2.0
"""The engine of one host; the package docstring lists its events and actions."""

import functools
import math
from collections.abc import Callable
from collections.abc import Container
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any
from typing import Concatenate
from typing import NamedTuple
from typing import ParamSpec

from acstor_agent.engine import actions
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import failure
from acstor_agent.engine import peer_state
from acstor_agent.engine import priority
from acstor_agent.engine import recovery
from acstor_agent.engine import settings
from acstor_agent.engine import transfer
from acstor_agent.engine.data_structures import timers
from acstor_agent.engine.fetch import context
from acstor_agent.engine.fetch import pending_reads
from acstor_agent.engine.fetch import read_through
from acstor_agent.engine.fetch import responses
from acstor_agent.engine.gossip import announcements
from acstor_agent.engine.ring import placement
from acstor_agent.engine.ring import ring_view
from acstor_agent.engine.serve import authorization
from acstor_agent.engine.serve import peer_requests
from acstor_common.model import ids
from acstor_common.model import segments
from acstor_common.ring import hash_ring

Bytes = transfer.Bytes

Actions = list[actions.Action]
Due = timers.Due
Failure = failure.Failure
P = ParamSpec("P")


class Counters(NamedTuple):
    """Counts since the start."""

    failovers: int  # failed attempts that were repeated with another peer or the source
    source_preferred: int  # chunks read from the source first because peers were slower
    hedges: int  # extra requests because an answer was late
    invalid_chunks: int  # chunks from peers that did not match their CID
    backoffs: int  # times that a peer was put in backoff
    unauthorized: int  # refused requests of peers
    accepted_announcements: int  # chunks
    ignored_announcements: int  # chunks beyond the rate limit
    false_announcements: int  # chunks that the announcing host did not have


def _event(
    method: Callable[Concatenate["Engine", P], None],
) -> Callable[Concatenate["Engine", float, P], Actions]:
    """Make a method an event: it takes the time first and returns the actions."""

    @functools.wraps(method)
    def feed(self: "Engine", now: float, /, *what: P.args, **more: P.kwargs) -> Actions:
        self.context.now = now
        method(self, *what, **more)
        return self._finish_event()

    return feed


class Engine:
    """The engine of one host; the public methods that return actions are its events."""

    def __init__(
        self,
        own_host: ids.HostId,
        table: hash_ring.Ring,
        *,
        cache: Container[ids.Cid],
        rights: authorization.Authorization,
        rng: peer_state.Random,
        settings: settings.Settings = settings.DEFAULTS,
        source_access: context.SourceAccessOf = lambda image_id, offset: (
            placement.SourceAccess.IN_PARTS
        ),
    ) -> None:
        view = ring_view.RingView(own_host, table)
        self.rights = rights
        self.context = context.Context(view, rng, cache, settings, rights.attached, source_access)
        self._read_through = read_through.ReadThrough(self.context)
        self.requests = peer_requests.PeerRequests(self.context, self._read_through, rights)
        self.pending = pending_reads.PendingReads(self.context, self._read_through, self.requests)
        self._recovery = recovery.Recovery(self.context, self.pending, self.requests)
        self._responses = responses.Responses(self.context, self._read_through, self.pending)
        self._timer_handlers: dict[Due, Callable[[Any], None]] = {
            Due.ATTEMPTS: self._responses.check_timeouts,
            Due.READ_DEADLINE: self.pending.deadline_passed,
            Due.RETRY: self.pending.retries.pause_ended,
            Due.REQUEST_DEADLINES: lambda _: self.requests.check_deadlines(),
            Due.SLOT_TIMEOUT: self.requests.slots_timed_out,
            Due.LOOKUP_SLOT: lambda _: self.pending.lookups.release_slot(),
            Due.ANNOUNCEMENTS: lambda _: self.context.announcements.flush(self.context.now),
            Due.HINTS: lambda _: self.context.announcements.flush_hints(self.context.now),
            Due.REPEAT_ANNOUNCEMENTS: lambda host: self.context.announcements.repeat_announcements(
                host, self.context.now
            ),
        }
        self.context.announcements.follow_table(0.0)
        if settings.copies_limit:
            self.context.timers.set_timer(announcements.HINT_EVERY_S, Due.HINTS, None)

    def __len__(self) -> int:
        return len(self.context.transfers)

    @property
    def next_s(self) -> float | None:
        """Time of the next :meth:`run_due_timers`; None if no timer is set."""
        return self.context.timers.next_s

    @property
    def counters(self) -> Counters:
        """Counts since the start."""
        selection, peers = self.pending.selection, self.context.peers
        return Counters(
            selection.failovers,
            selection.source_preferred + self.context.upstream_delays.skipped,
            peers.hedges,
            peers.invalid_chunks,
            peers.backoffs,
            self.rights.refused,
            self.context.announcements.accepted_chunks,
            self.context.announcements.ignored_chunks,
            self._responses.false_announcements,
        )

    def requested_chunk(self, host: ids.HostId, number: int) -> chunk_ref.ChunkRef | None:
        """Return the chunk that a peer was asked for under a number, if it is pending."""
        peer = self.context.peers.get(host)
        attempt = peer.pending.get(number) if peer is not None else None
        return attempt.refs[attempt.numbers.index(number)] if attempt is not None else None

    def recover_from_fault(self, now: float, why: str) -> Actions:
        """Clean up after an event that raised: end half-done work; its readers get ``why``."""
        self.context.now = now
        self._recovery.recover_from_fault(why)
        return self._take_actions()

    # Local reads

    @_event
    def request_chunks(
        self,
        batch: Sequence[chunk_ref.ChunkRef],
        priority: priority.Priority,
        token: Hashable | None,  # identifies the reader in CompleteRead; None: notify no reader
        deadline_s: float = math.inf,
        is_retried: bool = True,  # retry while bytes may still arrive (GUEST only)
        guest: Hashable = None,  # the reader; guests take turns at the source
    ) -> None:
        """Fetch chunks that are not in the cache; an empty batch completes at once.

        :raises errors.LocalProtocolError: neither GUEST nor a priority of ``prefetch_limits``
        """
        self.pending.add_read(batch, priority, token, deadline_s, is_retried, guest)

    @_event
    def request_batches(
        self,
        batches: Iterable[tuple[Hashable, Sequence[chunk_ref.ChunkRef]]],
        priority: priority.Priority,
    ) -> None:
        """Fetch several batches, each with its own token, as :meth:`request_chunks` does."""
        for token, refs in batches:
            self.pending.add_read(refs, priority, token, math.inf, is_retried=False)

    @_event
    def cancel_reads(self, *tokens: Hashable) -> None:
        """Cancel reads by token."""
        for token in tokens:
            self.pending.cancel_reads(token)

    # Answers of peers

    @_event
    def peer_dialled(self, host: ids.HostId, round_trip_s: float) -> None:
        """Take the round-trip time of a new connection to a peer (0: unknown)."""
        self._read_through.peer_dialled(host, round_trip_s)

    @_event
    def chunks_arrived(self, host: ids.HostId, chunks: Sequence[tuple[int, Bytes]]) -> None:
        """Take chunks from a peer, by number; their bytes match the requested CIDs."""
        self._responses.chunks_received(host, chunks)

    @_event
    def peer_refused(self, host: ids.HostId, failed: Sequence[tuple[int, Failure]]) -> None:
        """Take refusals by number; INVALID: the peer sent bytes that do not match the CID."""
        self._responses.peer_refused(host, failed)

    @_event
    def peer_referred(self, host: ids.HostId, number: int, hosts: tuple[ids.HostId, ...]) -> None:
        """Take a referral to other hosts."""
        self._responses.peer_referred(host, number, hosts)

    @_event
    def keep_alive_received(self, host: ids.HostId) -> None:
        """Record that a peer still works on pending requests."""
        peer = self.context.peers.get(host)
        if peer is not None:
            peer.last_heard_s = self.context.now

    @_event
    def connection_lost(self, host: ids.HostId, connection: Hashable = None) -> None:
        """Fail the attempts sent on a connection; None: no connection could be made."""
        attempts = self.context.requests_out.take_lost(host, connection, self.context.now)
        self._responses.attempts_failed([(attempt, Failure.UNREACHABLE) for attempt in attempts])

    @_event
    def protocol_violated(self, host: ids.HostId, why: str) -> None:
        """Put a peer in backoff that broke the protocol; its attempts end by other events."""
        self._responses.protocol_violated(host, why)

    @_event
    def announcement_lost(self, host: ids.HostId) -> None:
        """Schedule announcements again for a peer that may not have received them."""
        self.context.announcements.announcement_lost(host, self.context.now)

    # Answers of the source

    @_event
    def source_read_progressed(
        self, number: int, outcomes: Iterable[tuple[int, Bytes | Failure]]
    ) -> None:
        """Take chunks or failures of a read, by index in ``refs``; more may follow."""
        self._responses.source_answered(number, outcomes)

    @_event
    def source_ended(self, number: int, why: Failure = Failure.UNREACHABLE) -> None:
        """Fail the chunks of a read that were not reported."""
        self._responses.source_ended(number, why)

    # Cache

    @_event
    def chunks_stored(self, runs: Iterable[actions.ArrivedRun]) -> None:
        """Release the bytes of stored chunks, and announce them."""
        context, note = self.context, self.rights.names.record_names
        for run in runs:
            self._release_bytes(run)
            note(run.refs)
            context.announcements.announce_chunks(run.refs, run.provider, context.now)

    @_event
    def chunks_not_stored(self, runs: Iterable[actions.ArrivedRun]) -> None:
        """Release the bytes of chunks that the cache did not take."""
        for run in runs:
            self._release_bytes(run)

    def _release_bytes(self, run: actions.ArrivedRun) -> None:
        kept = self.context.kept
        for key in run.keys:
            if key in kept:
                del kept[key]

    @_event
    def chunks_evicted(self, cids: Iterable[ids.Cid]) -> None:
        """Withdraw the announcements of chunks that left the cache."""
        for cid in cids:
            for oid in self.rights.names.drop_names(cid):
                self.context.announcements.withdraw_chunk(oid, self.context.now)

    @_event
    def cache_space_changed(self, has_space: bool) -> None:
        """Allow or stop prefetches: whether the cache has space for them."""
        self.pending.prefetch_limits.has_space = has_space

    # Requests of peers

    @_event
    def peer_requested(
        self,
        connection: Hashable,
        host: ids.HostId,
        requests: Iterable[chunk_ref.Request],
        is_far: bool = False,
    ) -> None:
        """Take requests of a peer; ``is_far``: over a WAN, for a host with no other connection."""
        uploads = self.context.far_uploads if is_far else self.context.uploads
        link = self.requests.links.get_or_create(connection, host, uploads, self.context.now)
        self.requests.take_requests(link, requests)

    @_event
    def peer_cancelled(self, connection: Hashable, numbers: Iterable[int]) -> None:
        """Cancel requests of a peer."""
        self.requests.cancel_requests(connection, numbers)

    @_event
    def peer_disconnected(self, connection: Hashable) -> None:
        """End the requests of a connection that has ended."""
        self.requests.connection_ended(connection)

    @_event
    def peer_raised_priority(self, connection: Hashable, numbers: Iterable[int]) -> None:
        """Raise pending requests of a peer to PEER, because its guests now wait."""
        self.requests.raise_priority(connection, numbers)

    @_event
    def contents_looked_up(
        self,
        connection: Hashable,
        found: Iterable[tuple[chunk_ref.Request, Sequence[ids.Content] | Failure]],
    ) -> None:
        """Take the contents at requested ranges (ZERO_CID: none), or why look-ups failed."""
        self.requests.contents_looked_up(connection, found)

    @_event
    def cache_read_failed(self, connection: Hashable, number: int) -> None:
        """Fetch a chunk of a ``SendChunk`` without data that the cache could not read."""
        self.requests.cache_read_failed(connection, number)

    @_event
    def answers_delivered(self, connections: Iterable[Hashable], late_s: float = 0.0) -> None:
        """Free the upload slots of connections whose bytes arrived up to ``late_s`` ago."""
        for connection in connections:
            self.requests.answers_delivered(connection, late_s)

    # Announcements, tables, time

    @_event
    def announcement_received(
        self,
        host: ids.HostId,
        held: Sequence[segments.Chunks],
        evicted: Sequence[segments.Chunks],
        evictable: Sequence[segments.Chunks],
        segment_chunks: int = 1,
    ) -> None:
        """Take an announcement of a peer: held chunks, evicted chunks, eviction hints."""
        message = held, evicted, evictable, segment_chunks
        self.context.announcements.process_announcement(host, *message, self.context.now)

    @_event
    def table_changed(self, table: hash_ring.Ring, former: hash_ring.Ring | None) -> None:
        """Follow a new v-node table; ``former`` is None once it no longer counts."""
        for old in dict.fromkeys(self.context.transfers.values()):
            self.context.transfers.split_transfer(old)  # its chunks may have other owners now
        self.context.ring.set_tables(table, former)
        self.context.peers.forget_others(self.context.ring.is_member, self.context.now)
        self.requests.follow_table()
        self.context.announcements.follow_table(self.context.now)

    @_event
    def run_due_timers(self) -> None:
        """Handle all timers that are due."""
        while (found := self.context.timers.pop_due(self.context.now)) is not None:
            due, what = found
            self._timer_handlers[due](what)

    def _finish_event(self) -> Actions:
        self.pending.start_queued()
        self.context.source_reads.start_queued_reads(self.context.now)
        return self._take_actions()

    def _take_actions(self) -> Actions:
        self.context.requests_out.flush(self.context.now)
        self.context.timers.drop_empty()
        return self.context.out.take_all()
