# SPDX-License-Identifier: Apache-2.0
"""Statements about boots of servers; :mod:`acstor_decision.db.database` runs them.

A host has one row for each server, up to a limit, so false reports displace only its own rows.
"""

from collections.abc import Mapping

import msgspec
import sqlalchemy as sa
from sqlalchemy import orm

from acstor_common.model import boot_timeline
from acstor_common.wire import decision_messages
from acstor_decision.db import json_columns
from acstor_decision.db import models

_Row = models.Boot
KEPT_OF_HOST = 256
KEPT_S = 7 * 86400.0  # how long a boot is kept; a row has some KiB


def record_boots(session: orm.Session, samples: Mapping[str, decision_messages.Sample]) -> None:
    """Store the boots that hosts report, in place of earlier ones of the same servers."""
    for host, sample in sorted(samples.items()):
        timelines = {boot.instance_id: boot for boot in sample.boots if boot.instance_id}
        if not timelines:
            continue
        session.execute(
            sa.delete(_Row).where(_Row.host == host, _Row.server_id.in_(sorted(timelines)))
        )
        rows = [_row(host, sample.sent_s, boot) for _, boot in sorted(timelines.items())]
        session.execute(sa.insert(_Row), rows)
        _forget_oldest(session, host)


def _forget_oldest(session: orm.Session, host: str) -> None:
    mine = sa.select(_Row.server_id).where(_Row.host == host)
    newest = mine.order_by(_Row.reported_s.desc(), _Row.server_id).offset(KEPT_OF_HOST)
    # MariaDB has no offset without a limit; a sample adds no more rows than this
    old = list(session.execute(newest.limit(decision_messages.MAX_BOOTS)).scalars())
    if old:
        session.execute(sa.delete(_Row).where(_Row.host == host, _Row.server_id.in_(old)))


def delete_before(session: orm.Session, before_s: float) -> None:
    """Delete boots reported before a time."""
    session.execute(sa.delete(_Row).where(_Row.reported_s < before_s))


def list_of_server(session: orm.Session, server_id: str) -> list[models.Boot]:
    """Return the last boot of a server on each host, the newest last."""
    wanted = sa.select(_Row).where(_Row.server_id == server_id).order_by(_Row.reported_s, _Row.host)
    return list(session.execute(wanted).scalars())


def list_newest(session: orm.Session, limit: int) -> list[models.Boot]:
    """Return the boots that hosts reported last, the newest first."""
    wanted = sa.select(_Row).order_by(_Row.reported_s.desc(), _Row.host, _Row.server_id)
    return list(session.execute(wanted.limit(limit)).scalars())


def timeline_of(row: models.Boot) -> boot_timeline.Timeline | None:
    """Return the timeline of a row; None if the row is damaged."""
    return json_columns.decode(row, "timeline", boot_timeline.Timeline)


def _row(host: str, reported_s: float, boot: boot_timeline.Timeline) -> dict[str, object]:
    return {
        "host": host,
        "server_id": boot.instance_id,
        "reported_s": reported_s,
        "timeline": msgspec.json.encode(boot).decode(),
    }
