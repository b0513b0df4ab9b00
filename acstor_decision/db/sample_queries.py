# SPDX-License-Identifier: Apache-2.0
"""Statements about samples: the last one of each host, and a history of traffic."""

import json
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import orm

from acstor_common.wire import decision_messages
from acstor_decision.db import boot_queries
from acstor_decision.db import image_queries
from acstor_decision.db import json_columns
from acstor_decision.db import models


def record_samples(
    session: orm.Session, samples: Mapping[str, tuple[decision_messages.Sample, int]]
) -> None:
    """Store the last samples, with the numbers of overloads in a row, and the traffic."""
    if not samples:
        return
    rows = [_host_row(*samples[host]) for host in sorted(samples)]
    known = set(session.execute(sa.select(models.Host.host)).scalars())
    if seen := [row for row in rows if row["host"] in known]:
        session.execute(sa.update(models.Host), seen)
    if fresh := [row for row in rows if row["host"] not in known]:
        first = [{**row, "first_seen_s": row["seen_s"], "is_drained": False} for row in fresh]
        session.execute(sa.insert(models.Host), first)
    last = {host: sample for host, (sample, _) in samples.items()}
    image_queries.replace_images(session, last)
    boot_queries.record_boots(session, last)
    _add_traffic(session, [_traffic_row(row) for row in rows])


def _host_row(sample: decision_messages.Sample, overloaded: int) -> dict[str, Any]:
    per_s = 1 / sample.interval_s
    return {
        "host": sample.host,
        "address": sample.address,
        "location": sample.location,
        "seen_s": sample.sent_s,
        "ring_epoch": sample.ring_epoch,
        "link_bytes_s": sample.link_bytes_s,
        "received_bytes_s": sample.total.received * per_s,
        "sent_bytes_s": sample.total.sent * per_s,
        "chunks_received_bytes_s": sample.chunks.received * per_s,
        "chunks_sent_bytes_s": sample.chunks.sent * per_s,
        "cache_bytes": sample.cache_bytes,
        "cache_limit_bytes": sample.cache_limit_bytes,
        "overloaded_in_a_row": overloaded,
        "peers": json.dumps(decision_messages.encode(sample)["peers"]),
        "health": msgspec.json.encode(sample.health).decode() if sample.health else None,
    }


def health_of(row: models.Host) -> decision_messages.HostHealth | None:
    """Return the health that a host reported; None if it is unknown."""
    return json_columns.decode(row, "health", decision_messages.HostHealth)


def peers_of(row: models.Host) -> dict[str, decision_messages.PeerTraffic]:
    """Return the chunk traffic of a host by peer, in the last collection; empty if unknown."""
    return json_columns.decode(row, "peers", dict[str, decision_messages.PeerTraffic]) or {}


def _add_traffic(session: orm.Session, rows: list[dict[str, Any]]) -> None:
    """Insert traffic that the previous leader has not stored yet."""
    row = models.HostTraffic
    oldest_s = min(new["collected_s"] for new in rows)
    found = session.execute(sa.select(row.host, row.collected_s).where(row.collected_s >= oldest_s))
    known = {(host, collected_s) for host, collected_s in found}
    if fresh := [new for new in rows if (new["host"], new["collected_s"]) not in known]:
        session.execute(sa.insert(row), fresh)


def _traffic_row(row: Mapping[str, Any]) -> dict[str, Any]:
    names = [column.key for column in models.HostTraffic.__table__.columns if column.key in row]
    return {"collected_s": row["seen_s"], **{name: row[name] for name in names}}


def delete_traffic(session: orm.Session, before_s: float) -> None:
    """Delete the traffic of collections before a time."""
    session.execute(sa.delete(models.HostTraffic).where(models.HostTraffic.collected_s < before_s))


def list_traffic(
    session: orm.Session, since_s: float, hosts: Sequence[str] = ()
) -> list[models.HostTraffic]:
    """Return the traffic of these hosts, or of all, sorted by time and host."""
    row = models.HostTraffic
    wanted = sa.select(row).where(row.collected_s >= since_s)
    if hosts:
        wanted = wanted.where(row.host.in_(hosts))
    return list(session.execute(wanted.order_by(row.collected_s, row.host)).scalars())
