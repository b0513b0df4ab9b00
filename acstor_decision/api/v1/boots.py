# SPDX-License-Identifier: Apache-2.0
"""Timelines of servers' boots, as their hosts reported them."""

import datetime
from collections.abc import Iterator
from typing import Annotated

import msgspec

from acstor_common.model import boot_timeline
from acstor_decision.api import operation
from acstor_decision.db import boot_queries
from acstor_decision.db import models


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


class BootSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A boot, without its timeline.

    :param took_s: from the agent's first step to the last read
    :param waited_s: part of it with a read pending
    """

    server_id: str
    host: str
    image_id: str
    began_at: datetime.datetime
    reported_at: datetime.datetime
    took_s: float
    waited_s: float
    is_over: bool


class NewestBoots(msgspec.Struct, frozen=True):
    """Boots of all servers, the last report first."""

    boots: list[BootSummary]


class BootQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Size of the list."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20


def list_newest(call: operation.Call) -> NewestBoots:
    """Return the newest boots."""
    rows = call.store.newest_boots(call.query.limit)
    return NewestBoots([_summary(row, timeline) for row, timeline in _with_timelines(rows)])


def _with_timelines(
    rows: list[models.Boot],
) -> Iterator[tuple[models.Boot, boot_timeline.Timeline]]:
    for row in rows:
        if timeline := boot_queries.timeline_of(row):
            yield row, timeline


def _summary(row: models.Boot, timeline: boot_timeline.Timeline) -> BootSummary:
    return BootSummary(
        server_id=row.server_id,
        host=row.host,
        image_id=timeline.image_id,
        began_at=operation.utc_time(timeline.began_at_s),
        reported_at=operation.utc_time(row.reported_s),
        took_s=timeline.last_s,
        waited_s=sum(timeline.waited_s.values()),
        is_over=timeline.is_over,
    )


def of_server(call: operation.Call) -> Boots:
    """Return the boots of a server."""
    server_id = operation.server_id(call.path["server_id"])
    rows = call.store.list_boots(server_id)
    return Boots(
        server_id,
        [
            Boot(
                row.host,
                operation.utc_time(row.reported_s),
                timeline,
            )
            for row, timeline in _with_timelines(rows)
        ],
    )


OPERATIONS = (
    operation.Operation(
        "boot:list",
        "GET",
        "/v1/boots",
        "List the newest boots of all servers",
        NewestBoots,
        list_newest,
        query=BootQuery,
    ),
    operation.Operation(
        "server:boots",
        "GET",
        "/v1/servers/{server_id}/boots",
        "Show the timelines of a server's boots",
        Boots,
        of_server,
    ),
)
