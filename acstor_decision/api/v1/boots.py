# SPDX-License-Identifier: Apache-2.0
"""Timelines of servers' boots, as their hosts reported them."""

import datetime

import msgspec

from acstor_common.model import boot_timeline
from acstor_decision.api import operation
from acstor_decision.db import boot_queries


class Boot(msgspec.Struct, frozen=True):
    """The last boot of a server on a host.

    :param reported_at: last report of the host; it reports a running boot every 30 s
    """

    host: str
    reported_at: datetime.datetime
    timeline: boot_timeline.Timeline


class Boots(msgspec.Struct, frozen=True):
    """Last boot of a server on each host that reported one within a week, the newest last."""

    server_id: str
    boots: list[Boot]


def of_server(call: operation.Call) -> Boots:
    """Return the boots of a server."""
    server_id = operation.server_id(call.path["server_id"])
    rows = call.store.list_boots(server_id)
    return Boots(
        server_id,
        [
            Boot(
                row.host,
                datetime.datetime.fromtimestamp(row.reported_s, datetime.UTC),
                boot_queries.timeline_of(row),
            )
            for row in rows
        ],
    )


OPERATIONS = (
    operation.Operation(
        "server:boots",
        "GET",
        "/v1/servers/{server_id}/boots",
        "Show the timelines of a server's boots",
        Boots,
        of_server,
    ),
)
