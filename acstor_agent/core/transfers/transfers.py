# SPDX-License-Identifier: Apache-2.0
"""The machine: events in, actions out.

Every method that is an event takes the time first, and returns what is to be done.  What
happens when a guest reads a cold chunk stands in ``fetching``.
"""

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

from acstor_agent.core.exchange import homes
from acstor_agent.core.transfers import actions
from acstor_agent.core.transfers import deadlines
from acstor_agent.core.transfers import failure as failure_
from acstor_agent.core.transfers import mending
from acstor_agent.core.transfers import peer_book
from acstor_agent.core.transfers import priority as priority_
from acstor_agent.core.transfers import settings as settings_
from acstor_agent.core.transfers import tables
from acstor_agent.core.transfers import transfer as transfer_
from acstor_agent.core.transfers import want as want_
from acstor_agent.core.transfers.fetching import answers
from acstor_agent.core.transfers.fetching import parts
from acstor_agent.core.transfers.fetching import through
from acstor_agent.core.transfers.fetching import waiters
from acstor_agent.core.transfers.giving import requests
from acstor_agent.core.transfers.giving import rights as rights_
from acstor_agent.core.transfers.telling import news
from acstor_common import ids
from acstor_common import ring

Actions = list[actions.Action]
Due = deadlines.Due
Failure = failure_.Failure
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
    :ivar heard: OIDs of which peers told; ``ignored``: that were too many; ``denied``: that they
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
    method: Callable[Concatenate["Transfers", P], None],
) -> Callable[Concatenate["Transfers", float, P], Actions]:
    """Make an event of a method: it takes the time first, and returns what is to be done."""

    @functools.wraps(method)
    def feed(self: "Transfers", now: float, /, *what: P.args, **more: P.kwargs) -> Actions:
        self.parts.now = now
        method(self, *what, **more)
        return self._done()

    return feed


class Transfers:
    """All contents under way at one host.

    :param cache: says which contents are here
    :param rng: for the jitter of backoffs
    :param given_as: says of what the image's home is asked before the source
    """

    def __init__(
        self,
        here: ids.HostId,
        table: ring.Ring,
        *,
        cache: Container[ids.Cid],
        rights: rights_.Rights,
        rng: peer_book.Random,
        settings: settings_.Settings = settings_.DEFAULTS,
        given_as: parts.GivenAs = lambda image_id, offset: homes.Given.IN_PARTS,
    ) -> None:
        view = tables.Tables(here, table)
        self.rights = rights
        self.parts = parts.Parts(view, rng, cache, settings, lambda: 1 + rights.images, given_as)
        self._through = through.Through(self.parts, self._source_failed)
        self.requests = requests.Requests(self.parts, self._through, rights)
        self.waiters = waiters.Waiters(self.parts, self._through, self.requests)
        self._mending = mending.Mending(self.parts, self.waiters, self.requests)
        self._answers = answers.Answers(self.parts, self._through, self.waiters)
        self._dues: dict[Due, Callable[[Any], None]] = {
            Due.ATTEMPTS: self._answers.look_at,
            Due.WAITER: self.waiters.is_late,
            Due.RETRY: self.waiters.retries.is_due,
            Due.REQUESTS: lambda _: self.requests.look(),
            Due.PATIENCE: self.requests.out_of_patience,
            Due.SEARCH: lambda _: self.waiters.searches.place_free(),
            Due.NEWS: lambda _: self.parts.news.flush(self.parts.now),
            Due.HINTS: lambda _: self.parts.news.flush_hints(self.parts.now),
            Due.TELL_AGAIN: lambda host: self.parts.news.tell_again(host, self.parts.now),
        }
        self.parts.news.follow_table(0.0)
        if settings.copies_limit:
            self.parts.deadlines.put(news.HINT_EVERY_S, Due.HINTS, None)

    def _source_failed(self, transfer: transfer_.Transfer, failure: Failure) -> None:
        self.waiters.source_failed(transfer, failure)

    def __len__(self) -> int:
        """Return how many contents are under way."""
        return len(self.parts.transfers)

    @property
    def next_s(self) -> float | None:
        """When :meth:`tick` is due; None if nothing is."""
        return self.parts.deadlines.next_s

    @property
    def counters(self) -> Counters:
        """What has happened since the start."""
        travels, book = self.waiters.travels, self.parts.book
        return Counters(
            travels.fallbacks,
            travels.source_firsts,
            book.hedges,
            book.invalid_chunks,
            book.backoffs,
            self.rights.refused,
            self.requests.given,
            self.requests.referred,
            self.parts.news.heard_oids,
            self.parts.news.ignored_oids,
            self._answers.denied,
        )

    def asked_of(self, host: ids.HostId, number: int) -> want_.Want | None:
        """Return what a peer was asked for by a number, to check its bytes; None: nothing (now)."""
        peer = self.parts.book.get(host)
        attempt = peer.asks.get(number) if peer is not None else None
        return attempt.want if attempt is not None else None

    def mend(self, now: float, why: str) -> Actions:
        """End what an event that has raised has left half done, and no more; see ``mending``.

        :param why: what to tell those of this host who wait for it
        """
        self.parts.now = now
        self._mending.mend(why)
        return self._todo()

    # What this host wants

    @_event
    def wanted(
        self,
        batch: Sequence[want_.Want],
        priority: priority_.Priority,
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
        self.waiters.wanted(batch, priority, token, deadline_s, is_patient, opener)

    @_event
    def each_wanted(
        self, wants: Iterable[tuple[Hashable, want_.Want]], priority: priority_.Priority
    ) -> None:
        """As ``wanted``, but each of the contents is a batch of its own, with its own token.

        :param priority: a reason that has a lane
        :raises errors.LocalProtocolError: it has none
        """
        for token, want in wants:
            self.waiters.wanted((want,), priority, token, math.inf, is_patient=False)

    @_event
    def cancelled(self, *tokens: Hashable) -> None:
        """Who wanted batches does not wait any more."""
        for token in tokens:
            self.waiters.cancelled(token)

    # What peers answer

    @_event
    def chunks_arrived(
        self, host: ids.HostId, chunks: Iterable[tuple[int, transfer_.Bytes]]
    ) -> None:
        """A peer gave contents, by the numbers of attempts; they are what was asked for."""
        self._answers.gave(host, chunks)

    @_event
    def refused(self, host: ids.HostId, failed: Iterable[tuple[int, Failure]]) -> None:
        """A peer does not give contents; INVALID: it gave bytes that are not what was asked for."""
        self._answers.refused(host, failed)

    @_event
    def referred(self, host: ids.HostId, number: int, hosts: tuple[ids.HostId, ...]) -> None:
        """A peer names hosts to ask instead."""
        self._answers.referred(host, number, hosts)

    @_event
    def alive(self, host: ids.HostId) -> None:
        """A peer says that it works on what it was asked."""
        peer = self.parts.book.get(host)
        if peer is not None:
            peer.heard_s = self.parts.now

    @_event
    def lost(self, host: ids.HostId, connection: Hashable = None) -> None:
        """A connection to a peer is lost: what was asked on it has no answer.

        :param connection: as ``Attempt.connection`` has it; None: one could not be made, so
            nothing of what was sent on none is answered
        """
        attempts = self.parts.asking.take_lost(host, connection, self.parts.now)
        self._answers.ended([(attempt, Failure.UNREACHABLE) for attempt in attempts])

    @_event
    def broke_rules(self, host: ids.HostId, why: str) -> None:
        """A peer broke the protocol; what was asked of it is told of by itself."""
        self._answers.broke_rules(host, why)

    @_event
    def unheard(self, host: ids.HostId) -> None:
        """A peer may not have got what it was told: it was not reached, or has gone since."""
        self.parts.news.unheard(host, self.parts.now)

    # What the source answers

    @_event
    def source_gave(
        self, number: int, told: Iterable[tuple[int, transfer_.Bytes | Failure]]
    ) -> None:
        """The source tells of chunks of a read, by index: what they are, or why they are not.

        It may come several times for one number, as chunks come.  What nobody reads (any more)
        changes nothing; ``source_ended`` says that no more comes.
        """
        self._answers.source_told(number, told)

    @_event
    def source_ended(self, number: int, why: Failure = Failure.UNREACHABLE) -> None:
        """A read is over: what it has not told of has failed."""
        self._answers.source_ended(number, why)

    # The cache

    @_event
    def stored(self, chunks: Iterable[actions.Arrived]) -> None:
        """Contents are in the cache."""
        note, kept = self.rights.names.note, self.parts.kept
        contents: list[tuple[ids.Oid, ids.HostId | None]] = []
        for chunk in chunks:
            want = chunk.want
            kept.pop(want.key, None)
            note(want.cid, want.oid)
            contents.append((want.oid, chunk.giver))
        self.parts.news.have(contents, self.parts.now)

    @_event
    def not_stored(self, chunks: Iterable[actions.Arrived]) -> None:
        """The cache could not take contents."""
        for chunk in chunks:
            self.parts.kept.pop(chunk.want.key, None)

    @_event
    def gone(self, cids: Iterable[ids.Cid]) -> None:
        """Contents have left the cache."""
        for cid in cids:
            for oid in self.rights.names.gone(cid):
                self.parts.news.gone(oid, self.parts.now)

    @_event
    def has_room(self, has_room: bool) -> None:
        """The cache has room for what nobody waits for, or has none."""
        self.waiters.lanes.has_room = has_room

    # What peers ask

    @_event
    def peer_asked(
        self, connection: Hashable, host: ids.HostId, requests: Iterable[want_.Request]
    ) -> None:
        """A peer asks for contents."""
        self.requests.asked(connection, host, requests)

    @_event
    def peer_cancelled(self, connection: Hashable, numbers: Iterable[int]) -> None:
        """A peer does not wait for answers any more."""
        self.requests.cancelled(connection, numbers)

    @_event
    def peer_left(self, connection: Hashable) -> None:
        """A connection on which a peer asked has ended."""
        self.requests.left(connection)

    @_event
    def peer_hurried(self, connection: Hashable, numbers: Iterable[int]) -> None:
        """Guests of a peer wait now for what it has asked; what was answered stays so."""
        self.requests.hurried(connection, numbers)

    @_event
    def looked_up(
        self, connection: Hashable, found: Iterable[tuple[int, ids.Content | Failure]]
    ) -> None:
        """What the image names where a request looks, ZERO_CID: nothing; or why nobody can say."""
        self.requests.looked_up(connection, found)

    @_event
    def could_not_read(self, connection: Hashable, number: int) -> None:
        """What was ``Given`` without data cannot be read from the cache, and is gone from it."""
        self.requests.could_not_read(connection, number)

    @_event
    def delivered(self, connections: Iterable[Hashable], late_s: float = 0.0) -> None:
        """All that was sent on connections has arrived.

        :param late_s: how much later than it wanted to the shell has looked
        """
        for connection in connections:
            self.requests.delivered(connection, late_s)

    # News, tables, time

    @_event
    def heard(
        self,
        host: ids.HostId,
        here: Sequence[ids.Oid],
        gone: Sequence[ids.Oid],
        evictable: Sequence[ids.Oid],
    ) -> None:
        """A peer tells what it has, what is gone from it, and what others may let go."""
        self.parts.news.heard(host, here, gone, evictable, self.parts.now)

    @_event
    def table_changed(self, table: ring.Ring, former: ring.Ring | None) -> None:
        """Another v-node table is in force, or the former one counts no more."""
        self.parts.tables.change(table, former)
        self.parts.book.forget_others(self.parts.tables.has, self.parts.now)
        self.requests.follow_table()
        self.parts.news.follow_table(self.parts.now)

    @_event
    def tick(self) -> None:
        """Time has passed: do what is due."""
        while (found := self.parts.deadlines.take(self.parts.now)) is not None:
            due, what = found
            self._dues[due](what)

    def _done(self) -> Actions:
        """Return what the event has brought about."""
        self.waiters.begin_more()
        self.parts.sources.start(self.parts.now)
        return self._todo()

    def _todo(self) -> Actions:
        """Return what is to be done now; ``next_s`` says when there is more."""
        self.parts.asking.flush(self.parts.now)
        self.parts.deadlines.drop_empty()
        return self.parts.out.take()
