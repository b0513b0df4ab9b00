# SPDX-License-Identifier: Apache-2.0
"""The statements about checkpoints; :mod:`acstor_decision.db.database` runs them.

Newer is what was registered later.  The moments that hosts tell are for people:
their clocks may be wrong, and a wrong one must not hide what was taken since.
"""

from collections.abc import Collection
from typing import NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy import orm

from acstor_common.wire import checkpoint_messages
from acstor_decision.db import models

ROW = models.Checkpoint
MAX_PICTURED = 10_000
RECOVERY_S = 3 * 86400.0
"""How long a checkpoint that was given out for recovery stays at most because of that."""


class Newest(NamedTuple):
    """The newest checkpoint of an instance, and the bytes of all."""

    instance_id: str
    taken_s: float
    interval_s: int
    changed_bytes: int


def insert_checkpoint(
    session: orm.Session, taken: checkpoint_messages.RegisteredCheckpoint, told_s: float, kept: int
) -> list[models.Checkpoint] | None:
    """Note a checkpoint, and forget those of the instance beyond the ``kept`` newest.

    Those that a host may still fetch stay as well.  Who registers one of an instance that another
    host took the former ones of has all of what it was recovered from.

    :returns: those of the instance that stay; None if one like it, or a later one, is there
    """
    fields = msgspec.structs.asdict(taken)
    del fields["sent_s"]
    fields["holders"] = msgspec.json.encode(taken.holders).decode()
    fields |= {"disk_key": fields.pop("key"), "told_s": told_s, "gone_s": None}
    former = session.get(ROW, taken.checkpoint_id)
    if former is not None:
        is_same = all(getattr(former, n) == fields[n] for n in ("host", "manifest_name"))
        return list_of_instance(session, taken.instance_id) if is_same else None
    # Of this host's alone: any host can read what others call their disks, and say so of its own.
    its_own = ROW.vault_disk == taken.vault_disk, ROW.host == taken.host
    newest = sa.select(sa.func.max(ROW.number)).where(*its_own)
    if (session.execute(newest).scalar() or 0) >= taken.number:
        return None
    session.execute(sa.insert(ROW).values(**fields, off_hosts_s=None, recovered_s=None))
    of_others = ROW.instance_id == taken.instance_id, ROW.host != taken.host
    session.execute(sa.update(ROW).where(*of_others).values(recovered_s=None))
    found = list_of_instance(session, taken.instance_id)
    old = [row for row in found[kept:] if not is_recovered(row, told_s)]
    if old:
        gone = [row.checkpoint_id for row in old]
        session.execute(sa.delete(ROW).where(ROW.checkpoint_id.in_(gone)))
    return [row for row in found if row not in old]


def record_recovery(
    session: orm.Session, checkpoint_id: str, now_s: float
) -> models.Checkpoint | None:
    """Note that a host is given what it needs to recover an instance from a checkpoint.

    The note comes first: a checkpoint that has it stays, and what is given out is one that stays.

    :returns: the checkpoint; None if it is not there any more
    """
    session.execute(
        sa.update(ROW).where(ROW.checkpoint_id == checkpoint_id).values(recovered_s=now_s)
    )
    return session.get(ROW, checkpoint_id)


def is_recovered(row: models.Checkpoint, now_s: float) -> bool:
    """Say whether a host may still fetch a checkpoint, to recover its instance."""
    return row.recovered_s is not None and now_s - row.recovered_s < RECOVERY_S


def list_of_instance(session: orm.Session, instance_id: str) -> list[models.Checkpoint]:
    """Return the checkpoints of an instance, the newest first."""
    wanted = sa.select(ROW).where(ROW.instance_id == instance_id)
    return list(session.execute(wanted.order_by(ROW.told_s.desc(), ROW.number.desc())).scalars())


def list_of_host(session: orm.Session, host: str, limit: int) -> list[models.Checkpoint]:
    """Return the checkpoints that a host took."""
    wanted = sa.select(ROW).where(ROW.host == host).order_by(ROW.checkpoint_id).limit(limit)
    return list(session.execute(wanted).scalars())


def hosts_with_checkpoints(session: orm.Session, hosts: Collection[str]) -> set[str]:
    """Return those of these hosts that took a checkpoint which is there still."""
    wanted = sa.select(ROW.host).distinct().where(ROW.host.in_(hosts))
    return set(session.execute(wanted).scalars())


def list_checkpoints(
    session: orm.Session, marker: str, limit: int, instance_id: str, host: str, project_id: str
) -> list[models.Checkpoint]:
    """Return checkpoints, the newest first.

    :param marker: begin behind this one; that is forgotten: begin with the newest
    :param instance_id: of this one alone; empty: of all; so are ``host`` and ``project_id``
    """
    wanted = sa.select(ROW)
    for column, value in (
        (ROW.instance_id, instance_id),
        (ROW.host, host),
        (ROW.project_id, project_id),
    ):
        if value:
            wanted = wanted.where(column == value)
    if marker and (last := session.get(ROW, marker)) is not None:
        is_same_time = sa.and_(ROW.told_s == last.told_s, ROW.checkpoint_id < marker)
        wanted = wanted.where(sa.or_(ROW.told_s < last.told_s, is_same_time))
    in_order = wanted.order_by(ROW.told_s.desc(), ROW.checkpoint_id.desc())
    return list(session.execute(in_order.limit(limit)).scalars())


def list_instances(session: orm.Session, after: str, limit: int) -> list[str]:
    """Return the instances that have checkpoints, in the order of their ids, behind ``after``."""
    wanted = sa.select(ROW.instance_id).distinct().where(ROW.instance_id > after)
    return list(session.execute(wanted.order_by(ROW.instance_id).limit(limit)).scalars())


def record_presence(
    session: orm.Session, instance_id: str, host: str | None, now_s: float, kept_s: float
) -> int:
    """Note whether Nova knows an instance; forget its checkpoints ``kept_s`` after it did last.

    :param host: that it is on; empty: on none, as one that is shelved; None: Nova does not know it
    :returns: how many were forgotten
    """
    its = ROW.instance_id == instance_id
    if host is not None:
        here = {"gone_s": None, "off_hosts_s": None if host else now_s}
        was = ROW.off_hosts_s.is_not(None) if host else ROW.off_hosts_s.is_(None)
        session.execute(
            sa.update(ROW).where(its, sa.or_(was, ROW.gone_s.is_not(None))).values(**here)
        )
        return 0
    session.execute(sa.update(ROW).where(its, ROW.gone_s.is_(None)).values(gone_s=now_s))
    gone = session.execute(sa.delete(ROW).where(its, ROW.gone_s <= now_s - kept_s))
    return int(getattr(gone, "rowcount", 0))


def delete_checkpoint(session: orm.Session, checkpoint_id: str) -> bool:
    """Forget a checkpoint; say whether it was there."""
    if session.get(ROW, checkpoint_id) is None:
        return False
    session.execute(sa.delete(ROW).where(ROW.checkpoint_id == checkpoint_id))
    return True


def list_newest(session: orm.Session) -> list[Newest]:
    """Return the newest checkpoint of each instance that is on a host, MAX_PICTURED at most."""
    last = sa.select(ROW.instance_id, sa.func.max(ROW.told_s).label("told_s"))
    last_of = (
        last.where(ROW.gone_s.is_(None), ROW.off_hosts_s.is_(None))
        .group_by(ROW.instance_id)
        .subquery()
    )
    is_last = sa.and_(ROW.instance_id == last_of.c.instance_id, ROW.told_s == last_of.c.told_s)
    fields = (ROW.instance_id, ROW.taken_ms, ROW.interval_s, ROW.changed_bytes)
    wanted = sa.select(*fields).join(last_of, is_last).order_by(ROW.instance_id)
    return [
        Newest(instance_id, taken_ms / 1000, interval_s, changed_bytes)
        for instance_id, taken_ms, interval_s, changed_bytes in session.execute(
            wanted.limit(MAX_PICTURED)
        )
    ]


def holders_of(row: models.Checkpoint) -> list[checkpoint_messages.Holder]:
    """Return who keeps a checkpoint."""
    return msgspec.json.decode(row.holders, type=list[checkpoint_messages.Holder])
