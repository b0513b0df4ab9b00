# SPDX-License-Identifier: Apache-2.0
"""Traffic: what hosts sent and received, collection by collection."""

import datetime
from typing import Annotated
from typing import Any

import msgspec

from acstor_common import ids
from acstor_decision.api import hosts
from acstor_decision.api import operation

LONGEST_S = 86_400.0


class Collection(msgspec.Struct, frozen=True):
    """One host in one collection."""

    host: str
    collected_at: datetime.datetime
    rates: hosts.Rates


class Collections(msgspec.Struct, frozen=True):
    """Collections, in the order of time and host."""

    traffic: list[Collection]


class Window(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which traffic is wanted.

    :param last_s: seconds before now; 0: each host's last collection alone
    :param host: one host's alone
    """

    last_s: Annotated[float, msgspec.Meta(ge=0, le=LONGEST_S)] = 0.0
    host: str = ""

    def __post_init__(self) -> None:
        if self.host:
            ids.parse_host_id(self.host)


def window(call: operation.Call) -> Collections:
    """Answer with the traffic of a stretch of time."""
    wanted = [call.query.host] if call.query.host else []
    if call.query.last_s:
        rows = call.store.traffic(call.wall() - call.query.last_s, wanted)
        return Collections([_shown(row, row.collected_s) for row in rows])
    known = [row for row in call.store.hosts() if not wanted or row.host in wanted]
    return Collections([_shown(row, row.seen_s) for row in known if row.seen_s is not None])


def _shown(row: Any, collected_s: float) -> Collection:
    rates = hosts.Rates(
        *(
            getattr(row, f"{what}_bytes_s")
            for what in ("received", "sent", "chunks_received", "chunks_sent")
        )
    )
    at = datetime.datetime.fromtimestamp(collected_s, datetime.UTC)
    return Collection(row.host, at, rates)


OPERATIONS = (
    operation.Operation(
        "traffic:list",
        "GET",
        "/v1/traffic",
        "List what hosts sent and received",
        Collections,
        window,
        query=Window,
    ),
)
