# SPDX-License-Identifier: Apache-2.0
"""The engine of one host: events in, actions out (see the package)."""

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
from acstor_agent.engine import placement
from acstor_agent.engine import priority
from acstor_agent.engine import recovery
from acstor_agent.engine import ring_view
from acstor_agent.engine import settings
from acstor_agent.engine import timers
from acstor_agent.engine import transfer as transfer_
from acstor_agent.engine.fetch import context
from acstor_agent.engine.fetch import pending_reads
from acstor_agent.engine.fetch import read_through
from acstor_agent.engine.fetch import responses
from acstor_agent.engine.gossip import announcements
from acstor_agent.engine.serve import authorization
from acstor_agent.engine.serve import peer_requests
from acstor_common.model import ids
from acstor_common.model import segments
from acstor_common.ring import hash_ring

Actions = list[actions.Action]
Due = timers.Due
Failure = failure.Failure
P = ParamSpec("P")


class Counters(NamedTuple):
    """What has happened since the start.

    :ivar fallbacks: attempts that gave nothing, so another place was asked
    :ivar source_firsts: guests who were sent to the source because peers were slower
    :ivar hedges: places that were asked because another one was late
    :ivar invalid: chunks of peers that were not what was asked for
    :ivar backoffs: times that a peer was left alone
    :ivar unauthorized: requests of peers that were not theirs to make
    :ivar given: chunks given to peers
    :ivar referrals: requests of peers that were answered with other hosts
    :ivar heard: chunks of which peers told; ``ignored``: that were too many; ``denied``: that they
        had not when they were asked
    """

    fallbacks: int
    source_firsts: int
    hedges: int
    invalid: int
    backoffs: int
    unauthorized: int
    given: int
    referrals: int
    heard: int
    ignored: int
    denied: int


def _event(
    method: Callable[Concatenate["Engine", P], None],
) -> Callable[Concatenate["Engine", float, P], Actions]:
    """Make an event of a method: it takes the time first, and returns what is to be done."""

    @functools.wraps(method)
    def feed(self: "Engine", now: float, /, *what: P.args, **more: P.kwargs) -> Actions:
        self.context.now = now
        method(self, *what, **more)
        return self._done()

    return feed


class Engine:
    """All contents under way at one host.

    :param cache: says which contents are here
    :param rng: for the jitter of backoffs
    :param given_as: says of what the image's home is asked before the source
    """

    def __init__(
        self,
        here: ids.HostId,
        table: hash_ring.Ring,
        *,
        cache: Container[ids.Cid],
        rights: authorization.Authorization,
        rng: peer_state.Random,
        settings: settings.Settings = settings.DEFAULTS,
        given_as: context.SourceAccessOf = lambda image_id, offset: placement.SourceAccess.IN_PARTS,
    ) -> None:
        view = ring_view.RingView(here, table)
        self.rights = rights
        self.context = context.Context(
            view, rng, cache, settings, lambda: 1 + rights.images, given_as
        )
        self._read_through = read_through.ReadThrough(self.context, self._source_failed)
        self.requests = peer_requests.PeerRequests(self.context, self._read_through, rights)
        self.pending = pending_reads.PendingReads(self.context, self._read_through, self.requests)
        self._recovery = recovery.Recovery(self.context, self.pending, self.requests)
        self._responses = responses.Responses(self.context, self._read_through, self.pending)
        self._dues: dict[Due, Callable[[Any], None]] = {
            Due.ATTEMPTS: self._responses.check_timeouts,
            Due.WAITER: self.pending.is_late,
            Due.RETRY: self.pending.retries.is_due,
            Due.REQUESTS: lambda _: self.requests.check_deadlines(),
            Due.PATIENCE: self.requests.out_of_patience,
            Due.SEARCH: lambda _: self.pending.lookups.place_free(),
            Due.NEWS: lambda _: self.context.announcements.flush(self.context.now),
            Due.HINTS: lambda _: self.context.announcements.flush_hints(self.context.now),
            Due.TELL_AGAIN: lambda host: self.context.announcements.tell_again(
                host, self.context.now
            ),
        }
        self.context.announcements.follow_table(0.0)
        if settings.copies_limit:
            self.context.timers.put(announcements.HINT_EVERY_S, Due.HINTS, None)

    def _source_failed(self, transfer: transfer_.Transfer, failure: Failure) -> None:
        self.pending.source_failed(transfer, failure)

    def __len__(self) -> int:
        """Return how many contents are under way."""
        return len(self.context.transfers)

    @property
    def next_s(self) -> float | None:
        """When :meth:`run_due_timers` is due; None if nothing is."""
        return self.context.timers.next_s

    @property
    def counters(self) -> Counters:
        """What has happened since the start."""
        travels, book = self.pending.selection, self.context.peers
        return Counters(
            travels.fallbacks,
            travels.source_firsts,
            book.hedges,
            book.invalid_chunks,
            book.backoffs,
            self.rights.refused,
            self.requests.given,
            self.requests.referred,
            self.context.announcements.heard_chunks,
            self.context.announcements.ignored_chunks,
            self._responses.denied,
        )

    def asked_of(self, host: ids.HostId, number: int) -> chunk_ref.ChunkRef | None:
        """Return what a peer was asked for by a number, to check its bytes; None: nothing (now)."""
        peer = self.context.peers.get(host)
        attempt = peer.asks.get(number) if peer is not None else None
        return attempt.refs[attempt.numbers.index(number)] if attempt is not None else None

    def recover_from_fault(self, now: float, why: str) -> Actions:
        """End what an event that has raised has left half done, and no more; see ``recovery``.

        :param why: what to tell those of this host who wait for it
        """
        self.context.now = now
        self._recovery.recover_from_fault(why)
        return self._todo()

    # What this host wants

    @_event
    def request_chunks(
        self,
        batch: Sequence[chunk_ref.ChunkRef],
        priority: priority.Priority,
        token: Hashable | None,
        deadline_s: float = math.inf,
        is_patient: bool = True,
        opener: Hashable = None,
    ) -> None:
        """Contents that are not in the cache are wanted; of none the answer comes at once.

        :param priority: GUEST, or a reason that has a lane
        :param token: who is to be told; None: nobody
        :param is_patient: a guest waits as long as bytes may still come; other reasons never do
        :param opener: who of those that have an image open; they have turns at the source
        :raises errors.LocalProtocolError: the reason has no lane
        """
        self.pending.request_chunks(batch, priority, token, deadline_s, is_patient, opener)

    @_event
    def request_batches(
        self,
        batches: Iterable[tuple[Hashable, Sequence[chunk_ref.ChunkRef]]],
        priority: priority.Priority,
    ) -> None:
        """As ``wanted``, for several batches, each with its own token.

        :param priority: a reason that has a lane
        :raises errors.LocalProtocolError: it has none
        """
        for token, wants in batches:
            self.pending.request_chunks(wants, priority, token, math.inf, is_patient=False)

    @_event
    def cancel_reads(self, *tokens: Hashable) -> None:
        """Who wanted batches does not wait any more."""
        for token in tokens:
            self.pending.cancel_reads(token)

    # What peers answer

    @_event
    def chunks_arrived(
        self, host: ids.HostId, chunks: Sequence[tuple[int, transfer_.Bytes]]
    ) -> None:
        """A peer gave contents, by the numbers of attempts; they are what was asked for."""
        self._responses.chunks_received(host, chunks)

    @_event
    def peer_refused(self, host: ids.HostId, failed: Sequence[tuple[int, Failure]]) -> None:
        """A peer does not give contents; INVALID: it gave bytes that are not what was asked for."""
        self._responses.peer_refused(host, failed)

    @_event
    def peer_referred(self, host: ids.HostId, number: int, hosts: tuple[ids.HostId, ...]) -> None:
        """A peer names hosts to ask instead."""
        self._responses.peer_referred(host, number, hosts)

    @_event
    def keep_alive_received(self, host: ids.HostId) -> None:
        """A peer says that it works on what it was asked."""
        peer = self.context.peers.get(host)
        if peer is not None:
            peer.heard_s = self.context.now

    @_event
    def connection_lost(self, host: ids.HostId, connection: Hashable = None) -> None:
        """A connection to a peer is lost: what was asked on it has no answer.

        :param connection: as ``Attempt.connection`` has it; None: one could not be made, so
            nothing of what was sent on none is answered
        """
        attempts = self.context.requests_out.take_lost(host, connection, self.context.now)
        self._responses.judge_peer([(attempt, Failure.UNREACHABLE) for attempt in attempts])

    @_event
    def broke_rules(self, host: ids.HostId, why: str) -> None:
        """A peer broke the protocol; what was asked of it is told of by itself."""
        self._responses.broke_rules(host, why)

    @_event
    def announcement_lost(self, host: ids.HostId) -> None:
        """A peer may not have got what it was told: it was not reached, or has gone since."""
        self.context.announcements.announcement_lost(host, self.context.now)

    # What the source answers

    @_event
    def source_read_progressed(
        self, number: int, told: Iterable[tuple[int, transfer_.Bytes | Failure]]
    ) -> None:
        """The source tells of chunks of a read, by index: what they are, or why they are not.

        It may come several times for one number, as chunks come.  What nobody reads (any more)
        changes nothing; ``source_ended`` says that no more comes.
        """
        self._responses.source_told(number, told)

    @_event
    def source_ended(self, number: int, why: Failure = Failure.UNREACHABLE) -> None:
        """A read is over: what it has not told of has failed; needless where it has told of all."""
        self._responses.source_ended(number, why)

    # The cache

    @_event
    def chunks_stored(self, runs: Iterable[actions.Arrived]) -> None:
        """Contents are in the cache."""
        context, note = self.context, self.rights.names.record_names
        for run in runs:
            self._is_kept_no_more(run)
            note(run.refs)
            context.announcements.announce_chunks(run.refs, run.giver, context.now)

    @_event
    def not_stored(self, runs: Iterable[actions.Arrived]) -> None:
        """The cache could not take contents."""
        for run in runs:
            self._is_kept_no_more(run)

    def _is_kept_no_more(self, run: actions.Arrived) -> None:
        kept = self.context.kept
        for key in run.keys:
            if key in kept:
                del kept[key]

    @_event
    def chunk_evicted(self, cids: Iterable[ids.Cid]) -> None:
        """Contents have left the cache."""
        for cid in cids:
            for oid in self.rights.names.drop_names(cid):
                self.context.announcements.withdraw_chunk(oid, self.context.now)

    @_event
    def has_room(self, has_room: bool) -> None:
        """The cache has room for what nobody waits for, or has none."""
        self.pending.prefetch_limits.has_room = has_room

    # What peers ask

    @_event
    def peer_asked(
        self, connection: Hashable, host: ids.HostId, requests: Iterable[chunk_ref.Request]
    ) -> None:
        """A peer asks for contents."""
        self.requests.take_requests(connection, host, requests)

    @_event
    def peer_cancelled(self, connection: Hashable, numbers: Iterable[int]) -> None:
        """A peer does not wait for answers any more."""
        self.requests.cancel_requests(connection, numbers)

    @_event
    def peer_left(self, connection: Hashable) -> None:
        """A connection on which a peer asked has ended."""
        self.requests.connection_ended(connection)

    @_event
    def peer_hurried(self, connection: Hashable, numbers: Iterable[int]) -> None:
        """Guests of a peer wait now for what it has asked; what was answered stays so."""
        self.requests.raise_priority(connection, numbers)

    @_event
    def looked_up(
        self,
        connection: Hashable,
        found: Iterable[tuple[chunk_ref.Request, Sequence[ids.Content] | Failure]],
    ) -> None:
        """What the image names where a request looks, ZERO_CID: nothing; or why nobody can say."""
        self.requests.looked_up(connection, found)

    @_event
    def could_not_read(self, connection: Hashable, number: int) -> None:
        """What was ``Given`` without data cannot be read from the cache, and is gone from it."""
        self.requests.could_not_read(connection, number)

    @_event
    def answers_delivered(self, connections: Iterable[Hashable], late_s: float = 0.0) -> None:
        """All that was sent on connections has arrived.

        :param late_s: how much later than it wanted to the shell has looked
        """
        for connection in connections:
            self.requests.answers_delivered(connection, late_s)

    # News, tables, time

    @_event
    def announcement_received(
        self,
        host: ids.HostId,
        here: Sequence[segments.Chunks],
        gone: Sequence[segments.Chunks],
        evictable: Sequence[segments.Chunks],
        segment_chunks: int = 1,
    ) -> None:
        """A peer tells what it has, what is gone from it, and what others may let go.

        :param segment_chunks: the length of its segments
        """
        told = here, gone, evictable, segment_chunks
        self.context.announcements.process_announcement(host, *told, self.context.now)

    @_event
    def table_changed(self, table: hash_ring.Ring, former: hash_ring.Ring | None) -> None:
        """Another v-node table is in force, or the former one counts no more."""
        for transfer in dict.fromkeys(self.context.transfers.values()):
            self.context.transfers.split_transfer(transfer)  # its chunks may have other owners now
        self.context.ring.set_tables(table, former)
        self.context.peers.forget_others(self.context.ring.is_member, self.context.now)
        self.requests.follow_table()
        self.context.announcements.follow_table(self.context.now)

    @_event
    def run_due_timers(self) -> None:
        """Time has passed: do what is due."""
        while (found := self.context.timers.pop_due(self.context.now)) is not None:
            due, what = found
            self._dues[due](what)

    def _done(self) -> Actions:
        """Return what the event has brought about."""
        self.pending.start_queued()
        self.context.source_reads.start_queued_reads(self.context.now)
        return self._todo()

    def _todo(self) -> Actions:
        """Return what is to be done now; ``next_s`` says when there is more."""
        self.context.requests_out.flush(self.context.now)
        self.context.timers.drop_empty()
        return self.context.out.take_all()
