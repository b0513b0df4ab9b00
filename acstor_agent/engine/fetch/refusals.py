# SPDX-License-Identifier: Apache-2.0
"""Recent denials of chunks by hosts, so that broadcast lookups ask each host once."""

import collections
from collections.abc import Hashable
from collections.abc import Iterable
from typing import Generic
from typing import TypeVar

from acstor_common.model import ids

What = TypeVar("What", bound=Hashable)

REMEMBER_S = 10.0
"""Seconds for which a denial counts, however often a guest reads the chunk."""
LIMIT = 65_536
"""Denials that are remembered, over all chunks."""


class Refusals(Generic[What]):
    """The hosts that have denied chunks, by chunk.

    >>> denials, cid = Refusals(), ids.cid_of(b"a chunk")
    >>> denials.hosts_to_ask(cid, ["h2", "h3"], 0.0)
    ['h2', 'h3']
    >>> denials.record_denial(cid, "h3", 0.0)
    >>> denials.hosts_to_ask(cid, ["h2", "h3"], 9.9), denials.hosts_to_ask(cid, ["h2", "h3"], 10.0)
    (['h2'], ['h2', 'h3'])
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._count = 0
        self._denied: collections.OrderedDict[What, dict[ids.HostId, float]] = (
            collections.OrderedDict()
        )

    def __len__(self) -> int:
        return self._count

    def hosts_to_ask(
        self, what: What, hosts: Iterable[ids.HostId], now_s: float
    ) -> list[ids.HostId]:
        """Return those of ``hosts`` that have not denied a chunk recently."""
        denied = self._denied.get(what, {})
        since_s = now_s - REMEMBER_S
        return [host for host in hosts if denied.get(host, since_s) <= since_s]

    def record_denial(self, what: What, host: ids.HostId, now_s: float) -> None:
        """Record that a host denied a chunk."""
        found = self._denied.setdefault(what, {})
        self._count += host not in found
        found[host] = now_s
        self._denied.move_to_end(what)
        while self._count > self._limit and len(self._denied) > 1:
            _, forgotten = self._denied.popitem(last=False)
            self._count -= len(forgotten)
