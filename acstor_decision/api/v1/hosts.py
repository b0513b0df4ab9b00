# SPDX-License-Identifier: Apache-2.0
"""Hosts: the last sample of each, its place in the ring and its certificate."""

import datetime
import enum
import http
import itertools
from collections.abc import Iterator
from typing import Annotated
from typing import Any

import msgspec

from acstor_common.model import text_constraints
from acstor_common.wire import decision_messages
from acstor_decision.api import operation
from acstor_decision.api.v1 import rings
from acstor_decision.core import enrolment_rules
from acstor_decision.db import models
from acstor_decision.db import sample_queries
from acstor_decision.identity import enrolment_records


class HostState(enum.StrEnum):
    """State of a host."""

    UP = "up"  # it sends samples
    OVERLOADED = "overloaded"  # up, and its links were overloaded in the last collection
    SILENT = "silent"  # it sends no samples


NO_ENROLMENT = "none"
IDENTITIES = (
    *(
        state
        for state in enrolment_rules.EnrolmentState
        if state is not enrolment_rules.EnrolmentState.FORGOTTEN
    ),
    NO_ENROLMENT,
)
SORTED_BY = (
    *("host", "state", "location", "vnodes", "ring_epoch"),
    *("load", "cache_bytes", "last_seen_at"),
)
"""Sort keys of hosts; ``load``: use of the busier direction of their links."""


class Rates(msgspec.Struct, frozen=True):
    """Bytes per second in the last collection; the totals include the chunks."""

    received: float
    sent: float
    chunks_received: float
    chunks_sent: float


class Enrolment(msgspec.Struct, frozen=True, kw_only=True):
    """Enrolment of a host with the certificate authority.

    :param state: ``enrolled``: it has, or had, a certificate; ``waiting``: an operator must allow
        it; ``allowed``: it may enrol once; ``revoked``: its certificates are invalid
    :param user_id: Keystone user of the host; while it waits, the user of the first request
    :param address: source address of the last request for a certificate
    :param fingerprint: SHA-256 of its public key (SubjectPublicKeyInfo); of an allowed host, the
        key that may enrol; empty: any key
    :param requested_at: first request, if the host had to wait
    :param not_after: end of its last certificate
    """

    state: enrolment_rules.EnrolmentState
    user_id: str
    address: str
    fingerprint: str
    requested_at: datetime.datetime | None
    issued_at: datetime.datetime | None
    not_after: datetime.datetime | None


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """One host.

    :param vnodes: v-nodes that it owns; its share of them is its share of the chunks
    :param ring_epoch: epoch of the v-node table that its agent uses
    :param link_bytes_s: capacity of its links in each direction
    :param enrolment: null: it never requested a certificate
    :param overloads_in_a_row: number of the last collections in which it was overloaded
    """

    host: str
    state: HostState
    enrolment: Enrolment | None
    is_drained: bool
    address: str
    location: str
    vnodes: int
    ring_epoch: int
    first_seen_at: datetime.datetime | None
    last_seen_at: datetime.datetime | None
    link_bytes_s: int
    rates: Rates
    cache_bytes: int
    cache_limit_bytes: int
    overloads_in_a_row: int


class HostDetail(Host, frozen=True, kw_only=True):
    """One host, with the chunk traffic with each peer in the last collection.

    :param on_dead_mounts: servers, or processes, that use the dead mount of an earlier agent
    """

    peers: dict[str, decision_messages.PeerTraffic]
    on_dead_mounts: tuple[str, ...]


class Hosts(msgspec.Struct, frozen=True):
    """Hosts, sorted by id unless the query names another key."""

    hosts: list[Host]


class HostPage(operation.Page, frozen=True, forbid_unknown_fields=True):
    """Filters, order and page of the list.

    :param state: only hosts in this state
    :param enrolment: only hosts with this enrolment state; ``none``: that never requested a
        certificate
    :param location: only hosts at this location or below it: pod1 includes pod1/rack3
    :param sort: sort key and direction; ties are sorted by id, and unknown values come last. A
        host whose value changes between two pages may appear in both, or in neither
    """

    state: Annotated[str, text_constraints.full_match(f"({'|'.join(HostState)})?")] = ""
    enrolment: Annotated[str, text_constraints.full_match(f"({'|'.join(IDENTITIES)})?")] = ""
    location: Annotated[str, text_constraints.text_without_nul(255)] = ""
    sort: Annotated[str, text_constraints.full_match(f"({'|'.join(SORTED_BY)})(:(asc|desc))?")] = (
        "host"
    )


def list_hosts(call: operation.Call) -> Hosts:
    """Return hosts that sent samples or requested a certificate."""
    page: HostPage = call.query
    found = (host for host in _in_order(call, page) if _is_wanted(host, page))
    return Hosts(list(itertools.islice(found, page.limit)))


def _in_order(call: operation.Call, page: HostPage) -> Iterator[Host]:
    by, _, way = page.sort.partition(":")
    if (by, way) in (("host", ""), ("host", "asc")):
        yield from _of_ids(call, page.marker)
        return
    found = list(_of_ids(call, ""))
    known = [host for host in found if _sort_value(host, by) is not None]
    known.sort(key=lambda host: _sort_value(host, by), reverse=way == "desc")
    ordered = [*known, *(host for host in found if _sort_value(host, by) is None)]
    names = [host.host for host in ordered]
    if page.marker and page.marker not in names:
        raise operation.RequestRefused(
            http.HTTPStatus.BAD_REQUEST, f"marker: no host {page.marker[:64]}"
        )
    yield from ordered[names.index(page.marker) + 1 :] if page.marker else ordered


def _sort_value(host: Host, by: str) -> Any:
    if by == "load":
        busier = max(host.rates.received, host.rates.sent)
        return busier / host.link_bytes_s if host.link_bytes_s else None
    return getattr(host, by)


def _is_wanted(host: Host, page: HostPage) -> bool:
    identity = host.enrolment.state if host.enrolment else NO_ENROLMENT
    is_there = page.location in ("", host.location)
    return (
        page.state in ("", host.state)
        and page.enrolment in ("", identity)
        and (is_there or host.location.startswith(f"{page.location}/"))
    )


def _of_ids(call: operation.Call, marker: str) -> Iterator[Host]:
    enrolled = {
        row.host: row
        for row in call.store.list_enrolments()
        if not enrolment_records.is_name_free(row)
    }
    known = {row.host: row for row in call.store.list_hosts()}
    owners = rings.current_owners(call)
    for name in sorted(name for name in {*enrolled, *known} if name > marker):
        row = known.get(name) or _host_without_samples(name)
        yield Host(**_fields(call, row, enrolled.get(name), owners))


def show_host(call: operation.Call) -> HostDetail:
    """Return one host."""
    name = operation.host_id(call.path["host"])
    row, enrolled = call.store.get_host(name), call.store.get_enrolment(name)
    if enrolment_records.is_name_free(enrolled):
        enrolled = None
    if row is None and enrolled is None:
        raise operation.not_found(f"host {name}")
    row = row or _host_without_samples(name)
    health = sample_queries.health_of(row)
    return HostDetail(
        **_fields(call, row, enrolled, rings.current_owners(call)),
        peers=sample_queries.peers_of(row),
        on_dead_mounts=health.on_dead_mounts if health else (),
    )


def _host_without_samples(name: str) -> models.Host:
    columns = models.Host.__table__.columns
    defaults = {column.key: column.default.arg for column in columns if column.default is not None}
    return models.Host(host=name, **defaults)


def drain(call: operation.Call) -> HostDetail:
    """Move all v-nodes away from a host in the next round."""
    return _set_drained(call, True)


def enable(call: operation.Call) -> HostDetail:
    """Give v-nodes to a drained host again in the next round."""
    return _set_drained(call, False)


def _set_drained(call: operation.Call, is_drained: bool) -> HostDetail:
    name = operation.host_id(call.path["host"])
    if not call.store.set_drained(name, is_drained):
        raise operation.not_found(f"host {name}")
    return show_host(call)


def is_up(call: operation.Call, row: models.Host) -> bool:
    """Return whether a host sends samples."""
    return row.seen_s is not None and row.seen_s >= operation.up_since_s(call)


def _state(call: operation.Call, row: models.Host) -> HostState:
    if not is_up(call, row):
        return HostState.SILENT
    return HostState.OVERLOADED if row.overloaded_in_a_row else HostState.UP


def _time(seconds: float | None) -> datetime.datetime | None:
    return None if seconds is None else operation.utc_time(seconds)


def _enrolment(row: models.Enrolment | None) -> Enrolment | None:
    if row is None:
        return None
    return Enrolment(
        state=enrolment_records.state_of(row),
        user_id=row.user_id,
        address=row.address,
        fingerprint=enrolment_records.fingerprint(row),
        requested_at=_time(row.asked_s),
        issued_at=_time(row.issued_s),
        not_after=_time(row.not_after_s),
    )


def _fields(
    call: operation.Call,
    row: models.Host,
    enrolled: models.Enrolment | None,
    owners: dict[str, rings.Owner],
) -> dict[str, Any]:
    owner = owners.get(row.host)
    return {
        "host": row.host,
        "state": _state(call, row),
        "enrolment": _enrolment(enrolled),
        "is_drained": row.is_drained,
        "address": row.address,
        "location": row.location,
        "vnodes": owner.vnodes if owner else 0,
        "ring_epoch": row.ring_epoch,
        "first_seen_at": _time(row.first_seen_s),
        "last_seen_at": _time(row.seen_s),
        "link_bytes_s": row.link_bytes_s,
        "rates": Rates(
            row.received_bytes_s,
            row.sent_bytes_s,
            row.chunks_received_bytes_s,
            row.chunks_sent_bytes_s,
        ),
        "cache_bytes": row.cache_bytes,
        "cache_limit_bytes": row.cache_limit_bytes,
        "overloads_in_a_row": row.overloaded_in_a_row,
    }


OPERATIONS = (
    operation.Operation(
        "host:list", "GET", "/v1/hosts", "List hosts", Hosts, list_hosts, query=HostPage
    ),
    operation.Operation(
        "host:get", "GET", "/v1/hosts/{host}", "Show a host", HostDetail, show_host
    ),
    operation.host_action(
        "drain",
        "Move all v-nodes away from a host",
        HostDetail,
        drain,
        status=http.HTTPStatus.ACCEPTED,
    ),
    operation.host_action(
        "enable",
        "Give v-nodes to a drained host again",
        HostDetail,
        enable,
        status=http.HTTPStatus.ACCEPTED,
    ),
)
