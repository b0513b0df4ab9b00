# SPDX-License-Identifier: Apache-2.0
"""What the decision service knows while the lab works: who gives whom, and who carries what.

The rule: everything here was told by agents in their samples and stands in the
service's database; nothing is asked of agents themselves.  Of bytes by peer the
database keeps the last collection only, so a watch has to look more often than that.
"""

import collections
import json
import threading
from typing import NamedTuple
from typing import Self

from acstor_common.ring import hash_ring
from tests.lab import decision

CHECK_INTERVAL_S = 0.25


class Load(NamedTuple):
    """One host in one collection, in bytes a second.

    :param at_s: the wall clock's, when the collection ended
    :param others: what the link carried in its busier direction that were no chunks
    :param given: chunks that the host gave to others
    """

    host: str
    at_s: float
    others: float
    given: float


class Table(NamedTuple):
    """A v-node table that was published."""

    epoch: int
    at_s: float
    reason: str
    overloaded: str
    moved: int
    vnodes: dict[str, int]


class Watch:
    """Context manager: looks at a service's database until the block ends."""

    def __init__(self, service: decision.Service) -> None:
        self._service = service
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._seen: dict[str, float] = {}
        self._given: collections.Counter[tuple[str, str]] = collections.Counter()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ends.wait(CHECK_INTERVAL_S):
            found = self._service.query("SELECT host, seen_s, peers FROM hosts")
            for host, seen_s, peers in found:
                if self._seen.get(host) != seen_s:
                    self._seen[host] = seen_s
                    for peer, traffic in json.loads(peers or "{}").items():
                        self._given[peer, host] += traffic["received"]

    def given(self) -> dict[tuple[str, str], int]:
        """Return the bytes of chunks by who gave and who got them."""
        return dict(self._given)

    def loads(self, since_s: float = 0.0) -> list[Load]:
        """Return what hosts carried in the collections that ended after a time, oldest first."""
        rows = self._service.query(
            "SELECT host, collected_s, received_bytes_s - chunks_received_bytes_s,"
            " sent_bytes_s - chunks_sent_bytes_s, chunks_sent_bytes_s FROM traffic"
            f" WHERE collected_s > {since_s} ORDER BY collected_s"
        )
        return [Load(host, at_s, max(i, o, 0.0), given) for host, at_s, i, o, given in rows]

    def tables(self) -> list[Table]:
        """Return the v-node tables that were published, the oldest first."""
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
    """Return how many v-nodes each host of a table has."""
    return {host.host: host.vnodes for host in hash_ring.decode(table.encode(), "a table").hosts}
