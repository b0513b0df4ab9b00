# SPDX-License-Identifier: Apache-2.0
"""Statements about published v-node tables; :mod:`acstor_decision.db.database` runs them."""

import dataclasses
import logging
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import orm

from acstor_common import errors
from acstor_common.ring import hash_ring
from acstor_decision.db import models

LOG = logging.getLogger(__name__)

_Row = models.PublishedRing
_LAST_EPOCH = (1 << 63) - 1  # of the column


@dataclasses.dataclass(eq=False)
class EpochTaken(errors.AcstorError):
    """Another instance published a table of this epoch."""

    epoch: int
    text = "another instance has published epoch {epoch}"


class Publication(NamedTuple):
    """A v-node table in the history; ``table`` is its JSON, None if not requested."""

    epoch: int
    published_s: float
    reason: str
    overloaded: tuple[str, ...]
    moved: int
    vnodes: int
    hosts: int
    instance: str
    table: str | None = None


class StoredRing(NamedTuple):
    """A row of the history, and its table; None if the row is damaged."""

    row: Publication
    ring: hash_ring.Ring | None


def latest_epoch(session: orm.Session, at_most: int = _LAST_EPOCH) -> int:
    """Return the epoch of the last published table up to ``at_most``; 0 if there is none."""
    wanted = sa.select(sa.func.max(_Row.epoch)).where(_Row.epoch <= at_most)
    return session.execute(wanted).scalar() or 0


def get_ring(session: orm.Session, epoch: int) -> Publication | None:
    """Return the table of an epoch; None if it is not kept."""
    found = list_rings(session, limit=1, at_most=epoch, with_tables=True)
    return found[0] if found and found[0].epoch == epoch else None


def list_rings(
    session: orm.Session, limit: int, at_most: int | None = None, with_tables: bool = False
) -> list[Publication]:
    """Return published tables, the newest first, from epoch ``at_most`` on."""
    fields = [getattr(_Row, name) for name in Publication._fields]
    wanted = sa.select(*(fields if with_tables else fields[:-1])).order_by(_Row.epoch.desc())
    if at_most is not None:
        wanted = wanted.where(_Row.epoch <= at_most)
    found = [Publication(*row) for row in session.execute(wanted.limit(limit))]
    return [ring._replace(overloaded=tuple(str(ring.overloaded or "").split())) for ring in found]


def newest_rings(session: orm.Session, known: int = 0) -> list[StoredRing]:
    """Return the newest rows down to an undamaged one, without damaged ones above any leap."""
    found: list[StoredRing] = []
    while not found or found[-1].ring is None:
        below = found[-1].row.epoch - 1 if found else None
        rows = list_rings(session, limit=1, at_most=below, with_tables=True)
        if not rows:
            break
        found += map(_read, rows)
    known = max([known, *(stored.row.epoch for stored in found if stored.ring)])
    return [stored for stored in found if stored.row.epoch <= known + hash_ring.MAX_LEAP]


def _read(row: Publication) -> StoredRing:
    try:
        what = f"epoch {row.epoch} of the database"
        ring = hash_ring.decode((row.table or "").encode(), what)
        if ring.epoch != row.epoch:
            raise errors.RingFormatError(what, 0, f"the table is of epoch {ring.epoch}")
        return StoredRing(row, ring)
    except errors.RingFormatError as e:
        LOG.error(
            "database: rings.ring_table of %d is damaged: %s; an instance that becomes the leader "
            "publishes the table before it again, as a new epoch. Check the database's disk, then "
            "run DELETE FROM rings WHERE epoch = %d",
            *(row.epoch, e, row.epoch),
        )
        return StoredRing(row, None)


def store_ring(session: orm.Session, new: Publication, kept: int) -> None:
    """Store a table, and delete all but the ``kept`` last; EpochTaken if another was first."""
    if new.epoch <= latest_epoch(session, new.epoch + hash_ring.MAX_LEAP):
        raise EpochTaken(new.epoch)
    fields = {**new._asdict(), "overloaded": " ".join(new.overloaded)}
    session.execute(sa.insert(_Row).values(**fields))
    newest_first = sa.select(_Row.epoch).order_by(_Row.epoch.desc())
    oldest = session.execute(newest_first.offset(kept - 1).limit(1)).scalar()
    if oldest is not None:
        session.execute(sa.delete(_Row).where(_Row.epoch < oldest))
