# SPDX-License-Identifier: Apache-2.0
"""Statements on grantable images; :mod:`acstor_decision.db.database` runs them."""

from typing import Any
from typing import Final

import sqlalchemy as sa
from sqlalchemy import orm

from acstor_decision.core import enrolment_rules
from acstor_decision.db import models

_Row = models.GrantableImage
LINGER_S: Final = 3600.0
"""Time for which an image stays grantable after it was last named."""
_SEEN_S: Final = 600.0  # age of a host's last sample above which its needs do not count


def record_named(session: orm.Session, image_id: str, now_s: float) -> None:
    """Record that Nova or an operator named an image."""
    known = session.get(_Row, image_id)
    if known is None:
        session.add(_Row(image_id=image_id, named_s=now_s))
    else:
        known.named_s = max(known.named_s, now_s)


def is_grantable(session: orm.Session, image_id: str, now_s: float) -> bool:
    """Return whether an image was named recently, or hosts still need bytes of a named one.

    Nova names the image of an unshelved server only during the start, so needs count as well.
    """
    named_s = session.execute(sa.select(_Row.named_s).where(_Row.image_id == image_id)).scalar()
    if named_s is None:
        return False
    if named_s >= now_s - LINGER_S:
        return True
    needed = _needed(now_s).where(models.HeldImage.image_id == image_id)
    return bool(session.execute(sa.select(sa.exists(needed))).scalar())


def forget_unneeded(session: orm.Session, now_s: float) -> None:
    """Delete images that are not grantable any more."""
    is_old = _Row.named_s < now_s - LINGER_S
    session.execute(sa.delete(_Row).where(is_old, _Row.image_id.not_in(_needed(now_s))))


def _needed(now_s: float) -> sa.Select[Any]:
    held, host, enrolled = models.HeldImage, models.Host, models.Enrolment
    is_enrolled = sa.exists().where(
        enrolled.host == host.host, enrolled.state == enrolment_rules.EnrolmentState.ENROLLED
    )
    return (
        sa.select(held.image_id)
        .join(host, host.host == held.host)
        .where(
            sa.or_(held.is_used.is_(True), held.task.is_not(None)),
            held.is_fully_cached.is_(False),
            host.seen_s >= now_s - _SEEN_S,
            is_enrolled,
        )
    )
