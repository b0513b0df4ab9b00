# SPDX-License-Identifier: Apache-2.0
"""Statements on keys and enrolments; :mod:`acstor_decision.db.database` runs them.

A key's number is part of the primary key, so instances that start together share the first one.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import orm

from acstor_decision.core import enrolment_rules
from acstor_decision.db import models

MAX_SILENT_NAMES = 100  # most silent hosts that are named

MakeKey = Callable[[], models.AuthorityKey]


def list_keys(session: orm.Session, kind: str) -> list[models.AuthorityKey]:
    """Return the keys of a kind, the newest first."""
    row = models.AuthorityKey
    wanted = sa.select(row).where(row.kind == kind).order_by(row.number.desc())
    return list(session.execute(wanted).scalars())


def ensure_key(session: orm.Session, kind: str, make: MakeKey) -> list[models.AuthorityKey]:
    """Return the keys of a kind, newest first; create one, or raise a duplicate key error."""
    found = list_keys(session, kind)
    if not found:
        session.add(_numbered(make(), kind, 1))
        session.flush()
        found = list_keys(session, kind)
    return found


def add_key(
    session: orm.Session, kind: str, make: MakeKey, former_trusted_until_s: float
) -> models.AuthorityKey:
    """Add a key, and limit the trust in previous keys to a time."""
    former = list_keys(session, kind)
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


def list_enrolments(session: orm.Session) -> list[models.Enrolment]:
    """Return all enrolments, sorted by host."""
    wanted = sa.select(models.Enrolment).order_by(models.Enrolment.host)
    return list(session.execute(wanted).scalars())


def get_enrolment(session: orm.Session, host: str) -> models.Enrolment | None:
    """Return a host's enrolment."""
    return session.get(models.Enrolment, host)


def update_enrolment(
    session: orm.Session, host: str, work: Callable[[models.Enrolment | None], models.Enrolment]
) -> models.Enrolment:
    """Change or create a host's enrolment, with its row locked.

    :param work: returns its argument or a new row; called again if the transaction is retried; its
        exception rolls back the change
    """
    row = session.get(models.Enrolment, host, with_for_update=True)
    changed = work(row)
    if row is None:
        session.add(changed)
    session.flush()
    return changed


def exceeded_quota(
    session: orm.Session,
    user_id: str,
    limits: enrolment_rules.EnrolmentLimits,
    now_s: float,
    kept_s: float,
) -> tuple[int, str]:
    """Return the limit that a user's next host would exceed, and what it counts; else (0, "").

    At a limit, delete first hosts that waited long and, after ``kept_s``, records of freed names.

    :param user_id: empty: an operator
    """
    if _lack(session, user_id, limits)[0]:
        row, state = models.Enrolment, enrolment_rules.EnrolmentState
        waited_since_s = now_s - limits.least_waiting_s
        waited = sa.and_(row.state == state.WAITING, row.asked_s < waited_since_s)
        freed = sa.and_(row.state == state.FORGOTTEN, row.revoked_before_s < now_s - kept_s)
        session.execute(sa.delete(row).where(waited | freed))
    return _lack(session, user_id, limits)


def _lack(
    session: orm.Session, user_id: str, limits: enrolment_rules.EnrolmentLimits
) -> tuple[int, str]:
    row = models.Enrolment
    known = sa.select(sa.func.count()).select_from(row)
    bounds = [(known, limits.hosts, "that are known")]
    if user_id:
        of_user = known.where(row.user_id == user_id)
        unseen = of_user.where(~sa.exists().where(models.Host.host == row.host))
        bounds.append((of_user, limits.per_user, "of this user"))
        bounds.append((unseen, limits.unseen_per_user, "of this user that never sent a sample"))
    for counted, bound, which in bounds:
        if (session.execute(counted).scalar() or 0) >= bound:
            return bound, which
    return 0, ""


class Silent(NamedTuple):
    """Enrolled hosts that send no samples; ``names`` has the first of them."""

    total: int = 0
    names: Sequence[str] = ()


def list_silent(session: orm.Session, before_s: float) -> Silent:
    """Return hosts certified before a time that sent no sample since then."""
    row, sender = models.Enrolment, models.Host
    is_seen = sa.exists().where(sender.host == row.host, sender.seen_s >= before_s)
    is_enrolled = row.state == enrolment_rules.EnrolmentState.ENROLLED
    wanted = (is_enrolled, row.issued_s < before_s, ~is_seen)
    total = session.execute(sa.select(sa.func.count()).select_from(row).where(*wanted)).scalar()
    named = sa.select(row.host).where(*wanted).order_by(row.host).limit(MAX_SILENT_NAMES)
    return Silent(total or 0, list(session.execute(named).scalars()) if total else ())


def delete_host(
    session: orm.Session, host: str, change: Callable[[models.Enrolment], bool]
) -> bool:
    """Delete the records of a host; return whether it was known.

    ``change`` updates its enrolment, and returns whether to keep it.
    """
    row = session.get(models.Enrolment, host, with_for_update=True)
    is_known = session.get(models.Host, host) is not None
    if row is not None:
        is_known = is_known or row.state != enrolment_rules.EnrolmentState.FORGOTTEN
        if not change(row):
            session.delete(row)
    for table in (models.Host, models.HeldImage, models.PendingTask):
        session.execute(sa.delete(table).where(table.host == host))
    session.flush()
    return is_known


def count_refused(session: orm.Session, reason: str) -> None:
    """Count a refused certificate request."""
    row = session.get(models.RefusedEnrolments, reason, with_for_update=True)
    if row is None:
        row = models.RefusedEnrolments(reason=reason, times=0)
        session.add(row)
    row.times += 1
    session.flush()


def list_refused(session: orm.Session) -> dict[str, int]:
    """Return the number of refused certificate requests, by reason."""
    row = models.RefusedEnrolments
    return {reason: times for reason, times in session.execute(sa.select(row.reason, row.times))}
