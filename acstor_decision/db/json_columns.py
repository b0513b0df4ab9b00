# SPDX-License-Identifier: Apache-2.0
"""JSON columns of the database: a damaged one counts as unknown for its row alone."""

import logging
from typing import Final
from typing import TypeVar

import msgspec
import sqlalchemy as sa

from acstor_decision.db import models

LOG = logging.getLogger(__name__)
MAX_KNOWN: Final = 1024  # damaged columns remembered as logged
DAMAGED: Final = (msgspec.DecodeError, UnicodeError, RecursionError)
_T = TypeVar("_T")
_known: set[tuple[str, str]] = set()


def decode(row: models.Base, column: str, type_: type[_T]) -> _T | None:
    """Return the value of a column; None if it is empty or damaged."""
    text = getattr(row, column) or "null"
    try:
        found: _T | None = msgspec.json.decode(text, type=type_ | None)
    except DAMAGED as e:
        key = sa.inspect(row).identity or ()
        log_damage(f"{row.__tablename__}.{column} of {', '.join(map(str, key))}", text, e)
        return None
    return found


def log_damage(where: str, text: str, error: Exception) -> None:
    """Log a damaged column unless this damage was logged before."""
    if (where, text) in _known:
        return
    if len(_known) >= MAX_KNOWN:
        _known.clear()
    _known.add((where, text))
    LOG.warning("database: %s is damaged and counts as unknown: %s", where, error)
