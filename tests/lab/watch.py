# SPDX-License-Identifier: Apache-2.0
"""The decision service's view of the lab: chunk transfers and link loads.

All data come from agents' samples in the service's database, not from agents.  Bytes by peer are
those of the last collection only, so a watch polls more often than that.
"""

import collections
import json
from typing import NamedTuple

from acstor_common.ring import hash_ring
from tests.lab import background
from tests.lab import decision

CHECK_INTERVAL_S = 0.25


class Load(NamedTuple):
    """A host's load in one collection, in bytes per second.

    :param at_s: end of the collection, by the wall clock
    :param others: other traffic than chunks, in the link's busier direction
    :param given: chunk bytes sent
    """

    host: str
    at_s: float
    others: float
    given: float


class Table(NamedTuple):
    """A published v-node table."""

    epoch: int
    at_s: float
    reason: str
    overloaded: str
    moved: int
    vnodes: dict[str, int]


class Watch(background.Background):
    """Context manager: polls a service's database during the block."""

    def __init__(self, service: decision.Service) -> None:
        self._service = service
        super().__init__([self._look])
        self._seen: dict[str, float] = {}
        self._given: collections.Counter[tuple[str, str]] = collections.Counter()

    def _look(self) -> None:
        while not self.is_over.wait(CHECK_INTERVAL_S):
            found = self._service.query("SELECT host, seen_s, peers FROM hosts")
            for host, seen_s, peers in found:
                if self._seen.get(host) != seen_s:
                    self._seen[host] = seen_s
                    for peer, traffic in json.loads(peers or "{}").items():
                        self._given[peer, host] += traffic["received"]

    def given(self) -> dict[tuple[str, str], int]:
        """Return the bytes of chunks by sender and receiver."""
        return dict(self._given)

    def loads(self, since_s: float = 0.0) -> list[Load]:
        """Return the loads of collections that ended after a time, the oldest first."""
        rows = self._service.query(
            "SELECT host, collected_s, received_bytes_s - chunks_received_bytes_s,"
            " sent_bytes_s - chunks_sent_bytes_s, chunks_sent_bytes_s FROM traffic"
            f" WHERE collected_s > {since_s} ORDER BY collected_s"
        )
        return [Load(host, at_s, max(i, o, 0.0), given) for host, at_s, i, o, given in rows]

    def tables(self) -> list[Table]:
        """Return the published v-node tables, the oldest first."""
        rows = self._service.query(
            "SELECT epoch, published_s, reason, overloaded, moved, ring_table FROM rings"
            " ORDER BY epoch"
        )
        return [
            Table(epoch, at_s, reason, overloaded, moved, vnodes_of(table))
            for epoch, at_s, reason, overloaded, moved, table in rows
        ]

    def rings(self) -> list[hash_ring.Ring]:
        """Return the same tables as agents have them."""
        rows = self._service.query("SELECT ring_table FROM rings ORDER BY epoch")
        return [hash_ring.decode(table.encode(), "a table") for (table,) in rows]


def vnodes_of(table: str) -> dict[str, int]:
    """Return the number of v-nodes of each host of a table."""
    return {host.host: host.vnodes for host in hash_ring.decode(table.encode(), "a table").hosts}
