# SPDX-License-Identifier: Apache-2.0
"""The statements about checkpoints that fail; :mod:`acstor_decision.db.database` runs them."""

from collections.abc import Sequence
from typing import Final

import msgspec
import sqlalchemy as sa
from sqlalchemy import orm

from acstor_common.wire import checkpoint_messages as messages
from acstor_decision.db import models

ROW = models.CheckpointFailures
KEPT_S: Final = 1800.0
"""A host says it every ten minutes; what it does not say again is over."""
_decoder = msgspec.json.Decoder(tuple[messages.Failing, ...])


def record_failures(
    session: orm.Session, host: str, failing: Sequence[messages.Failing], now_s: float
) -> None:
    """Note what a host says now instead of what it said before."""
    session.execute(sa.delete(ROW).where(ROW.host == host))
    if failing:
        said = msgspec.json.encode(failing).decode()
        session.add(ROW(host=host, told_s=now_s, failing=said))


def delete_before(session: orm.Session, before_s: float) -> None:
    """Forget what was said before a time."""
    session.execute(sa.delete(ROW).where(ROW.told_s < before_s))


def list_failures(session: orm.Session, now_s: float) -> dict[str, tuple[messages.Failing, ...]]:
    """Return what hosts said lately, by host."""
    rows = session.execute(sa.select(ROW).where(ROW.told_s >= now_s - KEPT_S)).scalars()
    return {row.host: _decoder.decode(row.failing) for row in rows}
