# SPDX-License-Identifier: Apache-2.0
"""JSON columns of the database: a damaged one counts as unknown for its row alone."""

import logging
import time
from typing import Final
from typing import TypeVar

import msgspec
import sqlalchemy as sa

from acstor_common.util import log_limit
from acstor_decision.db import models

LOG = logging.getLogger(__name__)
LOG_EVERY_S: Final = 3600.0  # a line for each damaged column
DAMAGED: Final = (msgspec.DecodeError, UnicodeError, RecursionError)
_T = TypeVar("_T")
_limit = log_limit.LogLimit(LOG_EVERY_S)


def decode(row: models.Base, column: str, type_: type[_T]) -> _T | None:
    """Return the value of a column; None if it is empty or damaged."""
    text = getattr(row, column) or "null"
    try:
        found: _T | None = msgspec.json.decode(text, type=type_ | None)
    except DAMAGED as e:
        key = sa.inspect(row).identity or ()
        log_damage(f"{row.__tablename__}.{column} of {', '.join(map(str, key))}", e)
        return None
    return found


def log_damage(where: str, error: Exception, counts_as: str = "unknown") -> None:
    """Log a damaged column, at most once in LOG_EVERY_S."""
    if _limit.take_line(where, time.monotonic()) is not None:
        LOG.warning("database: %s is damaged and counts as %s: %s", where, counts_as, error)
