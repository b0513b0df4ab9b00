# SPDX-License-Identifier: Apache-2.0
"""Traffic of hosts, one record for each host and collection."""

import collections
import datetime
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Annotated
from typing import Any

import msgspec

from acstor_common.model import ids
from acstor_common.model import text_constraints
from acstor_common.wire import decision_messages
from acstor_decision.api import operation
from acstor_decision.api.v1 import hosts
from acstor_decision.db import models
from acstor_decision.db import sample_queries

LONGEST_S = 86_400.0
OTHERS = ""  # stands for all hosts that are not listed


class TrafficRecord(msgspec.Struct, frozen=True):
    """Traffic of one host in one collection."""

    host: str
    collected_at: datetime.datetime
    rates: hosts.Rates


class TrafficRecords(msgspec.Struct, frozen=True):
    """Records, sorted by time and host."""

    traffic: list[TrafficRecord]


class TrafficQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Filters of the list."""

    last_s: Annotated[float, msgspec.Meta(ge=0, le=LONGEST_S)] = 0.0  # 0: the last collection
    host: Annotated[str, text_constraints.text_without_nul(255)] = ""

    def __post_init__(self) -> None:
        if self.host:
            ids.parse_host_id(self.host)


def window(call: operation.Call) -> TrafficRecords:
    """Return the traffic of a period."""
    wanted = [call.query.host] if call.query.host else []
    if call.query.last_s:
        rows = call.store.list_traffic(call.wall() - call.query.last_s, wanted)
        return TrafficRecords([_shown(row, row.collected_s) for row in rows])
    known = [row for row in call.store.list_hosts() if not wanted or row.host in wanted]
    return TrafficRecords([_shown(row, row.seen_s) for row in known if row.seen_s is not None])


class PeerFlow(msgspec.Struct, frozen=True):
    """Chunks that a host sent to another one; an empty name: all hosts that are not listed.

    :param bytes: as the receiver reported, or the sender if the receiver is not listed
    """

    sender: str
    receiver: str
    bytes: int


class PeerFlows(msgspec.Struct, frozen=True):
    """Chunk traffic between hosts in the last collection of each.

    :param hosts: the hosts with the most chunk traffic, the busiest first
    :param flows: the largest first
    """

    hosts: list[str]
    flows: list[PeerFlow]


class PeerFlowQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Size of the list."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=40)] = 24


def peer_flows(call: operation.Call) -> PeerFlows:
    """Return the chunk traffic between hosts."""
    rows = call.store.list_exchanging(call.query.limit, operation.up_since_s(call))
    flows: collections.Counter[tuple[str, str]] = collections.Counter()
    for sender, receiver, count in _flows(rows):
        flows[sender, receiver] += count
    return PeerFlows(
        [row.host for row in rows],
        [
            PeerFlow(*pair, min(count, decision_messages.MAX_NUMBER))
            for pair, count in flows.most_common()
            if count
        ],
    )


def _flows(rows: Iterable[models.Host]) -> Iterator[tuple[str, str, int]]:
    listed = {row.host for row in rows}
    for row in rows:
        for peer, traffic in sample_queries.peers_of(row).items():
            if peer != row.host:
                yield peer if peer in listed else OTHERS, row.host, traffic.received
            if peer not in listed:
                yield row.host, OTHERS, traffic.sent


def _shown(row: Any, collected_s: float) -> TrafficRecord:
    rates = hosts.Rates(
        *(
            getattr(row, f"{what}_bytes_s")
            for what in ("received", "sent", "chunks_received", "chunks_sent")
        )
    )
    at = datetime.datetime.fromtimestamp(collected_s, datetime.UTC)
    return TrafficRecord(row.host, at, rates)


OPERATIONS = (
    operation.Operation(
        "traffic:list",
        "GET",
        "/v1/traffic",
        "List the traffic of hosts",
        TrafficRecords,
        window,
        query=TrafficQuery,
    ),
    operation.Operation(
        "traffic:peers",
        "GET",
        "/v1/traffic/peers",
        "List the chunk traffic between the busiest hosts",
        PeerFlows,
        peer_flows,
        query=PeerFlowQuery,
    ),
)
