# SPDX-License-Identifier: Apache-2.0
"""Connections with requests of peers, and the hosts that they belong to."""

import collections
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

from acstor_agent.engine import requester
from acstor_agent.engine import upload_scheduler
from acstor_common.model import ids


class RequesterLinks:
    """The connections, with the pending requests of each and their number per host."""

    def __init__(self) -> None:
        self.requesters: dict[ids.HostId, requester.Requester] = {}
        self._links: dict[Hashable, requester.RequesterLink] = {}

    def __iter__(self) -> Iterator[requester.RequesterLink]:
        return iter(self._links.values())

    def get(self, connection: Hashable) -> requester.RequesterLink | None:
        """Return a connection, if a peer has sent requests on it."""
        return self._links.get(connection)

    def get_or_create(
        self,
        connection: Hashable,
        host: ids.HostId,
        uploads: upload_scheduler.UploadScheduler,  # of a host without other connections
        now: float,
    ) -> requester.RequesterLink:
        """Return a connection for new requests; its keepalives begin with the first of them."""
        link = self._links.get(connection)
        if link is None:
            its = self.requesters.setdefault(host, requester.Requester(host, uploads))
            if not its.links:
                its.uploads = uploads
            link = self._links[connection] = requester.RequesterLink(connection, its)
            link.requester.links += 1
        if not link.peer_requests:
            link.alive_s = now
        return link

    def remove(self, connection: Hashable) -> requester.RequesterLink | None:
        """Remove a connection; return it, if it is known."""
        link = self._links.pop(connection, None)
        if link is not None:
            link.requester.links -= 1
        return link

    def add_requests(self, all_pending: Sequence[requester.PendingRequest]) -> None:
        """Add pending requests of one connection."""
        link = all_pending[0].link
        link.peer_requests.update([(pending.number, pending) for pending in all_pending])
        link.requester.requests += len(all_pending)

    def remove_request(self, pending: requester.PendingRequest) -> None:
        """Remove a request, if it is pending."""
        if pending.link.peer_requests.pop(pending.number, None) is not None:
            pending.link.requester.requests -= 1

    def is_waiting(self, pending: requester.PendingRequest) -> bool:
        """Return whether a request is pending on an open connection."""
        link = self._links.get(pending.link.connection)
        return link is pending.link and link.peer_requests.get(pending.number) is pending

    def waiting(
        self, connection: Hashable, numbers: Iterable[int]
    ) -> Iterator[requester.PendingRequest]:
        """Yield those of a connection's requests that are pending."""
        if (link := self._links.get(connection)) is None:
            return
        for number in numbers:
            if (pending := link.peer_requests.get(number)) is not None:
                yield pending

    def recount(self, begun: collections.Counter[requester.Requester | None]) -> None:
        """Rebuild the counters after a fault; ``begun``: transfers by the host charged for them."""
        for one in self.requesters.values():
            one.begun, one.requests = begun[one], 0
        for link in self._links.values():
            link.requester.requests += len(link.peer_requests)

    def drop_idle(self) -> None:
        """Forget hosts without connections and transfers."""
        for one in list(self.requesters.values()):
            if not (one.links or one.begun):
                del self.requesters[one.host]
