# SPDX-License-Identifier: Apache-2.0
"""v-node tables: the current one and its predecessors."""

import datetime
import functools
import http
from typing import Annotated
from typing import Any

import msgspec

from acstor_common import errors
from acstor_common.ring import hash_ring
from acstor_common.ring import location_policies
from acstor_decision.api import operation
from acstor_decision.db import json_columns
from acstor_decision.db import ring_queries


class RingSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A v-node table without its hosts.

    :param reason: reason of its publication: members, overload, threshold, places, segments,
        revoked or epoch
    :param overloaded_hosts: hosts whose overload was the reason
    :param moved_vnodes: v-nodes that were added, removed or moved to another host
    :param instance: instance of the service that published it
    """

    epoch: int
    published_at: datetime.datetime
    reason: str
    overloaded_hosts: tuple[str, ...]
    moved_vnodes: int
    vnodes: int
    hosts: int
    instance: str


class Owner(msgspec.Struct, frozen=True):
    """A host of a table, and the number of its v-nodes."""

    host: str
    address: str
    location: str
    vnodes: int


class Ring(RingSummary, frozen=True, kw_only=True):
    """A table, with its hosts.

    :param threshold: topology distance: hosts nearer to each other than this form a group with its
        own homes; null: all hosts form one group
    :param outer_threshold: a home asks the home of its wider group, of hosts nearer than this,
        before it reads the source; null: it reads the source at once
    :param places: by location: the share of v-nodes that serves other locations, in percent, and
        the outer threshold of the homes there; see the v-node table's format
    :param segment_chunks: number of consecutive chunks of an image that have the same home
    """

    threshold: int | None
    outer_threshold: int | None
    places: dict[str, location_policies.LocationPolicy]
    segment_chunks: int
    owners: tuple[Owner, ...]


class Rings(msgspec.Struct, frozen=True):
    """Tables, the newest first."""

    rings: list[RingSummary]


class RingPage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Page of the list."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    marker: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)] = 0  # previous page's last; 0: newest


def current(call: operation.Call) -> Ring:
    """Return the current table."""
    newest = call.store.list_rings(limit=1, with_tables=True)
    if not newest:
        raise operation.not_found("no agent has sent a sample yet, so the v-node table")
    return _shown(newest[0])


def show_table(call: operation.Call) -> Ring:
    """Return the table of an epoch."""
    text = call.path["epoch"]
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise operation.RequestRefused(
            http.HTTPStatus.BAD_REQUEST, f"{text[:64]!r} is not an epoch"
        )
    found = call.store.get_ring(int(text))
    if found is None:
        raise operation.not_found(f"epoch {text}")
    return _shown(found)


def history(call: operation.Call) -> Rings:
    """Return the published tables."""
    at_most = call.query.marker - 1 if call.query.marker else None
    return Rings([_summary_of(row) for row in call.store.list_rings(call.query.limit, at_most)])


def current_owners(call: operation.Call) -> dict[str, Owner]:
    """Return the hosts of the current table by ID; none if it is damaged."""
    newest = call.store.list_rings(limit=1, with_tables=True)
    return (_owners_of(newest[0]) or {}) if newest else {}


def is_damaged(row: ring_queries.Publication) -> bool:
    """Return whether the table of a row cannot be read."""
    return _owners_of(row) is None


def _owners_of(row: ring_queries.Publication) -> dict[str, Owner] | None:
    try:
        return owners(row.epoch, row.table or "")
    except errors.RingFormatError as e:
        json_columns.log_damage(f"rings.ring_table of {row.epoch}", e)
        return None


@functools.lru_cache(maxsize=4)
def owners(epoch: int, table: str) -> dict[str, Owner]:
    """Return the hosts of a table by ID; cached, as decoding large tables is slow."""
    known = hash_ring.decode(table.encode(), f"epoch {epoch} of the database")
    return {
        host.host: Owner(host.host, host.address, host.location, host.vnodes)
        for host in known.hosts
    }


def _summary_of(row: ring_queries.Publication) -> RingSummary:
    return RingSummary(**_fields(row))


def _shown(row: ring_queries.Publication) -> Ring:
    found = _owners_of(row)
    if found is None:
        why = f"the v-node table of epoch {row.epoch} cannot be shown: its row is damaged"
        raise operation.RequestRefused(http.HTTPStatus.CONFLICT, why)
    known = msgspec.json.decode(row.table or "", type=_TableSettings)
    return Ring(
        **_fields(row),
        threshold=known.threshold,
        outer_threshold=known.outer_threshold,
        places=known.places,
        segment_chunks=known.segment_chunks,
        owners=tuple(found.values()),
    )


class _TableSettings(msgspec.Struct):
    threshold: int | None = None
    outer_threshold: int | None = None
    places: dict[str, location_policies.LocationPolicy] = {}
    segment_chunks: int = 1


def _fields(row: ring_queries.Publication) -> dict[str, Any]:
    at = operation.utc_time(row.published_s)
    return {
        "epoch": row.epoch,
        "published_at": at,
        "reason": row.reason,
        "overloaded_hosts": row.overloaded,
        "moved_vnodes": row.moved,
        "vnodes": row.vnodes,
        "hosts": row.hosts,
        "instance": row.instance,
    }


OPERATIONS = (
    operation.Operation(
        "ring:get", "GET", "/v1/ring", "Show the current v-node table", Ring, current
    ),
    operation.Operation(
        "ring:list",
        "GET",
        "/v1/rings",
        "List the published v-node tables, the newest first",
        Rings,
        history,
        query=RingPage,
    ),
    operation.Operation(
        "ring:get_epoch",
        "GET",
        "/v1/rings/{epoch}",
        "Show the v-node table of an epoch",
        Ring,
        show_table,
    ),
)
