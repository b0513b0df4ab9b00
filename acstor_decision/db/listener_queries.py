# SPDX-License-Identifier: Apache-2.0
"""Statements about Glance listeners; :mod:`acstor_decision.db.database` runs them."""

import sqlalchemy as sa
from sqlalchemy import orm

from acstor_decision.db import models

MAX_LISTENERS = 100
KEPT_S = 86400.0  # how long a silent listener is remembered while another one reports


def record_listener(session: orm.Session, name: str, now_s: float) -> bool:
    """Record that a listener runs; return False if there are too many."""
    row = models.Listener
    session.execute(sa.delete(row).where(row.reported_s < now_s - KEPT_S))
    known = session.get(row, name)
    if known is not None:
        known.reported_s = now_s
        return True
    if (
        session.execute(sa.select(sa.func.count()).select_from(row)).scalar() or 0
    ) >= MAX_LISTENERS:
        return False
    session.add(row(listener=name, reported_s=now_s))
    return True


def list_listeners(session: orm.Session) -> list[models.Listener]:
    """Return all listeners, sorted by name."""
    row = models.Listener
    return list(session.execute(sa.select(row).order_by(row.listener)).scalars())
