# SPDX-License-Identifier: Apache-2.0
"""What the parts of the machine share: the tables, the transfers, and the time of the event."""

from collections.abc import Callable
from collections.abc import Container

from acstor_agent.core.exchange import homes
from acstor_agent.core.transfers import actions
from acstor_agent.core.transfers import deadlines
from acstor_agent.core.transfers import host_keys
from acstor_agent.core.transfers import peer_book
from acstor_agent.core.transfers import priority as priority_
from acstor_agent.core.transfers import settings as settings_
from acstor_agent.core.transfers import tables
from acstor_agent.core.transfers import transfer as transfer_
from acstor_agent.core.transfers import uplink
from acstor_agent.core.transfers import want as want_
from acstor_agent.core.transfers.fetching import asking
from acstor_agent.core.transfers.fetching import parents
from acstor_agent.core.transfers.fetching import sharing
from acstor_agent.core.transfers.fetching import sources
from acstor_agent.core.transfers.telling import holders
from acstor_agent.core.transfers.telling import news
from acstor_common import ids

GivenAs = Callable[[ids.ImageId, int], homes.Given]
"""Says how the source gives what lies there."""


class Parts:
    """See above.

    :param cache: says which contents are here
    :param lookups: says how many each OID that is told takes on this host
    :param given_as: see :data:`GivenAs`
    :ivar transfers: contents under way; ``kept``: those that came, until the cache has them
    :ivar unwanted: transfers whose read of the source goes on though nobody waits for it
    """

    def __init__(
        self,
        view: tables.Tables,
        rng: peer_book.Random,
        cache: Container[ids.Cid],
        settings: settings_.Settings,
        lookups: Callable[[], int],
        given_as: GivenAs,
    ) -> None:
        self.now = 0.0
        self._given_as = given_as
        self.cache = cache
        self.settings = settings
        self.tables = view
        self.transfers: dict[want_.Key, transfer_.Transfer] = {}
        self.kept: dict[want_.Key, actions.Arrived] = {}
        self.unwanted: dict[transfer_.Transfer, None] = {}
        self.out = actions.Out()
        self.deadlines = deadlines.Deadlines()
        self.book = peer_book.PeerBook(rng, may_hedge=settings.may_hedge)
        self.keys = host_keys.HostKeys()
        self.holders = holders.Holders(self.keys)
        self.asking = asking.Asking(self.out, self.deadlines, self.book, settings.timeout_s)
        self.sources = sources.Sources(self.out)
        self.uplink = uplink.Uplink(self.out, self.deadlines, settings.learns_ring)
        self.parents = parents.Parents(view.here, self.is_ring_worth)
        self.steps = parents.Steps()
        self.sharing = sharing.Sharing()
        self.news = news.News(
            *(self.out, self.deadlines, view, self.book, self.holders, settings.topology), lookups
        )

    def is_ring_worth(self, now: float) -> bool:
        """Say whether hosts in step are to learn a ring: where links have no queues homes are
        quicker.
        """
        return self.settings.learns_ring and self.uplink.has_met_queue(now)

    def is_usable(self, host: ids.HostId) -> bool:
        """Say whether a host is worth asking now: on a table, and not in backoff.

        After a backoff the answer is the leave for one attempt.
        """
        return self.tables.knows(host) and self.book.is_usable(host, self.now)

    def upstreams(
        self, want: want_.Want, requester: ids.HostId | None, is_moved: bool
    ) -> list[ids.HostId]:
        """Return whom this host asks, acting as the home of a content, before the source."""
        given = self._given_as(want.image_id, want.offset)
        if given is homes.Given.WHOLE_HERE:
            return []
        found = self.tables.upstreams(want.oid, requester, is_moved)
        is_whole = given is homes.Given.WHOLE
        return self.tables.with_image_homes(found, want.image_id) if is_whole else found

    def is_left_to(self, want: want_.Want, requester: ids.HostId) -> bool:
        """Say whether this host leaves a content to the new home that asks, being the former."""
        if not self.tables.is_left_to(want.oid, requester):
            return False
        return self._given_as(want.image_id, want.offset) is not homes.Given.WHOLE_HERE

    def transfer_of(self, want: want_.Want, priority: priority_.Priority) -> transfer_.Transfer:
        """Return the transfer of a content; where there is none it begins to be."""
        key = want.key
        transfer = self.transfers.get(key)
        if transfer is None:
            transfer = self.transfers[key] = transfer_.Transfer(want, key, priority)
            return transfer
        if transfer.names[0] is not want:
            transfer.join(want)
        if self.unwanted:
            self.unwanted.pop(transfer, None)
        return transfer

    def drop_if_done(self, transfer: transfer_.Transfer) -> None:
        """Forget a transfer of which nothing is under way and for which nobody waits."""
        if transfer.is_wanted:
            return
        if transfer.is_idle:
            self.forget(transfer)
        elif transfer.read is not None:
            self.unwanted[transfer] = None

    def forget(self, transfer: transfer_.Transfer) -> None:
        """Forget a transfer."""
        if self.transfers.get(transfer.key) is transfer:
            del self.transfers[transfer.key]
            if self.unwanted:
                self.unwanted.pop(transfer, None)
            self.uncharge(transfer)

    def uncharge(self, transfer: transfer_.Transfer) -> None:
        """Let a transfer count as nobody's: it does not go on because a peer asked."""
        if transfer.charged is not None:
            transfer.charged.begun -= 1
            transfer.charged = None
