# SPDX-License-Identifier: Apache-2.0
"""The statements about keys and enrolments; :mod:`acstor_decision.db.database` runs them.

The one rule: the first key of a kind is made once.  Its number is part of the primary
key, so of several instances that start together one notes its key, and the others
use that one.
"""

from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy import orm

from acstor_decision.db import models

MAX_ENROLMENTS = 65_536
"""Bound on the hosts that were ever spoken of; a host has 16 times fewer places on the ring."""

MakeKey = Callable[[], models.AuthorityKey]


def keys(session: orm.Session, kind: str) -> list[models.AuthorityKey]:
    """Return the keys of a kind, the newest first."""
    row = models.AuthorityKey
    wanted = sa.select(row).where(row.kind == kind).order_by(row.number.desc())
    return list(session.execute(wanted).scalars())


def first_key(session: orm.Session, kind: str, make: MakeKey) -> list[models.AuthorityKey]:
    """Return the keys of a kind, the newest first; make one if there is none.

    Raises what the database does of two rows with one primary key if another one was faster.
    """
    found = keys(session, kind)
    if not found:
        session.add(_numbered(make(), kind, 1))
        session.flush()
        found = keys(session, kind)
    return found


def add_key(
    session: orm.Session, kind: str, make: MakeKey, former_trusted_until_s: float
) -> models.AuthorityKey:
    """Add a key, and say until when those before it are trusted at most."""
    former = keys(session, kind)
    for row in former:
        until_s = row.trusted_until_s
        is_first = until_s is None or former_trusted_until_s < until_s
        row.trusted_until_s = former_trusted_until_s if is_first else until_s
    made = _numbered(make(), kind, former[0].number + 1 if former else 1)
    session.add(made)
    session.flush()
    return made


def _numbered(made: models.AuthorityKey, kind: str, number: int) -> models.AuthorityKey:
    made.kind, made.number = kind, number
    return made


def enrolments(session: orm.Session) -> list[models.Enrolment]:
    """Return all hosts that enrolled, asked or were allowed, in the order of their ids."""
    wanted = sa.select(models.Enrolment).order_by(models.Enrolment.host)
    return list(session.execute(wanted).scalars())


def change(
    session: orm.Session, host: str, work: Callable[[models.Enrolment | None], models.Enrolment]
) -> models.Enrolment:
    """Let ``work`` change what is known of a host, or make it; nobody comes between.

    :param work: returns what it was given, or a new row; what it raises leaves all as it was
    """
    row = session.get(models.Enrolment, host, with_for_update=True)
    changed = work(row)
    if row is None:
        session.add(changed)
    session.flush()
    return changed


def forget_waiting(session: orm.Session, before_s: float) -> None:
    """Forget hosts that wait since then: who is still there asks again."""
    row = models.Enrolment
    session.execute(sa.delete(row).where(row.state == "waiting", row.asked_s < before_s))


def count(session: orm.Session) -> int:
    """Return how many hosts were spoken of."""
    return session.execute(sa.select(sa.func.count()).select_from(models.Enrolment)).scalar() or 0
