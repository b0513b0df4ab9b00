# SPDX-License-Identifier: Apache-2.0
"""Statements on checkpoint failures; :mod:`acstor_decision.db.database` runs them."""

from collections.abc import Sequence
from typing import Final

import msgspec
import sqlalchemy as sa
from sqlalchemy import orm

from acstor_common.wire import checkpoint_messages as messages
from acstor_decision.db import json_columns
from acstor_decision.db import models

_Row = models.CheckpointFailures
KEPT_S: Final = 1800.0
"""A failure counts as current for this time; hosts repeat it every ten minutes."""


def record_failures(
    session: orm.Session, host: str, failing: Sequence[messages.Failing], now_s: float
) -> None:
    """Replace the failures of a host."""
    session.execute(sa.delete(_Row).where(_Row.host == host))
    if failing:
        encoded = msgspec.json.encode(failing).decode()
        session.add(_Row(host=host, reported_s=now_s, failing=encoded))


def delete_before(session: orm.Session, before_s: float) -> None:
    """Delete failures reported before a time."""
    session.execute(sa.delete(_Row).where(_Row.reported_s < before_s))


def list_failures(session: orm.Session, now_s: float) -> dict[str, tuple[messages.Failing, ...]]:
    """Return the current failures by host."""
    rows = session.execute(sa.select(_Row).where(_Row.reported_s >= now_s - KEPT_S)).scalars()
    return {
        row.host: json_columns.decode(row, "failing", tuple[messages.Failing, ...]) or ()
        for row in rows
    }
