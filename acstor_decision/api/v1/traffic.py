# SPDX-License-Identifier: Apache-2.0
"""Traffic of hosts, one record for each host and collection."""

import datetime
from typing import Annotated
from typing import Any

import msgspec

from acstor_common.model import ids
from acstor_decision.api import operation
from acstor_decision.api.v1 import hosts

LONGEST_S = 86_400.0


class TrafficRecord(msgspec.Struct, frozen=True):
    """Traffic of one host in one collection."""

    host: str
    collected_at: datetime.datetime
    rates: hosts.Rates


class TrafficRecords(msgspec.Struct, frozen=True):
    """Records, sorted by time and host."""

    traffic: list[TrafficRecord]


class TrafficQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Filters of the list.

    :param last_s: length of the period before now; 0: only the last collection of each host
    :param host: only records of this host
    """

    last_s: Annotated[float, msgspec.Meta(ge=0, le=LONGEST_S)] = 0.0
    host: str = ""

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
)
