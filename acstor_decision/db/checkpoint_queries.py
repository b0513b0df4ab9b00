# SPDX-License-Identifier: Apache-2.0
"""Statements about checkpoints; :mod:`acstor_decision.db.database` runs them.

The order is that of registration, as the clocks of hosts may be wrong.
"""

from collections.abc import Collection

import msgspec
import sqlalchemy as sa
from sqlalchemy import orm

from acstor_common.wire import checkpoint_messages
from acstor_decision.core import cloud_state
from acstor_decision.db import json_columns
from acstor_decision.db import models

_Row = models.Checkpoint
MAX_NEWEST = 10_000
PROTECTION_S = 3 * 86400.0  # how long a recovery protects its checkpoint from deletion


def insert_checkpoint(
    session: orm.Session,
    taken: checkpoint_messages.RegisteredCheckpoint,
    registered_s: float,
    kept: int,
) -> list[models.Checkpoint] | None:
    """Store a checkpoint; delete older ones than the ``kept`` newest, but none under recovery.

    A checkpoint from another host than the former ones shows that the recovery is complete.

    :returns: the checkpoints that stay; None if this ID or a later number is registered
    """
    fields = msgspec.structs.asdict(taken)
    del fields["sent_s"]
    fields["holders"] = msgspec.json.encode(taken.holders).decode()
    fields |= {"disk_key": fields.pop("key"), "registered_s": registered_s, "gone_s": None}
    former = session.get(_Row, taken.checkpoint_id)
    if former is not None:
        is_same = all(getattr(former, n) == fields[n] for n in ("host", "manifest_name"))
        return list_for_instance(session, taken.instance_id) if is_same else None
    # only this host's rows: another host could claim this disk name
    its_own = _Row.vault_disk == taken.vault_disk, _Row.host == taken.host
    newest = sa.select(sa.func.max(_Row.number)).where(*its_own)
    if (session.execute(newest).scalar() or 0) >= taken.number:
        return None
    session.execute(sa.insert(_Row).values(**fields, off_hosts_s=None, recovered_s=None))
    of_others = _Row.instance_id == taken.instance_id, _Row.host != taken.host
    session.execute(sa.update(_Row).where(*of_others).values(recovered_s=None))
    found = list_for_instance(session, taken.instance_id)
    old = [row for row in found[kept:] if not is_protected(row, registered_s)]
    if old:
        gone = [row.checkpoint_id for row in old]
        session.execute(sa.delete(_Row).where(_Row.checkpoint_id.in_(gone)))
    return [row for row in found if row not in old]


def record_recovery(
    session: orm.Session, checkpoint_id: str, now_s: float
) -> models.Checkpoint | None:
    """Protect a checkpoint that is recovered; return it, None if it was deleted."""
    session.execute(
        sa.update(_Row).where(_Row.checkpoint_id == checkpoint_id).values(recovered_s=now_s)
    )
    return session.get(_Row, checkpoint_id)


def is_protected(row: models.Checkpoint, now_s: float) -> bool:
    """Return whether a recovery, which may still fetch a checkpoint, protects it."""
    return row.recovered_s is not None and now_s - row.recovered_s < PROTECTION_S


def list_for_instance(session: orm.Session, instance_id: str) -> list[models.Checkpoint]:
    """Return the checkpoints of an instance, the newest first."""
    wanted = sa.select(_Row).where(_Row.instance_id == instance_id)
    return list(
        session.execute(wanted.order_by(_Row.registered_s.desc(), _Row.number.desc())).scalars()
    )


def get_checkpoint(session: orm.Session, checkpoint_id: str) -> models.Checkpoint | None:
    """Return one checkpoint."""
    return session.get(_Row, checkpoint_id)


def list_for_host(session: orm.Session, host: str, limit: int) -> list[models.Checkpoint]:
    """Return the checkpoints that a host took."""
    wanted = sa.select(_Row).where(_Row.host == host).order_by(_Row.checkpoint_id).limit(limit)
    return list(session.execute(wanted).scalars())


def hosts_with_checkpoints(session: orm.Session, hosts: Collection[str]) -> set[str]:
    """Return those of these hosts that took a checkpoint which is kept."""
    wanted = sa.select(_Row.host).distinct().where(_Row.host.in_(hosts))
    return set(session.execute(wanted).scalars())


def list_checkpoints(
    session: orm.Session, marker: str, limit: int, instance_id: str, host: str
) -> list[models.Checkpoint]:
    """Return checkpoints, the newest first; an empty ``instance_id`` or ``host`` means all.

    :param marker: last one of the previous page; if it was deleted, begin with the newest
    """
    wanted = sa.select(_Row)
    for column, value in ((_Row.instance_id, instance_id), (_Row.host, host)):
        if value:
            wanted = wanted.where(column == value)
    if marker and (last := session.get(_Row, marker)) is not None:
        is_same_time = sa.and_(_Row.registered_s == last.registered_s, _Row.checkpoint_id < marker)
        wanted = wanted.where(sa.or_(_Row.registered_s < last.registered_s, is_same_time))
    in_order = wanted.order_by(_Row.registered_s.desc(), _Row.checkpoint_id.desc())
    return list(session.execute(in_order.limit(limit)).scalars())


def list_instances(session: orm.Session, after: str, limit: int) -> list[str]:
    """Return the IDs above ``after`` of instances with checkpoints, sorted."""
    wanted = sa.select(_Row.instance_id).distinct().where(_Row.instance_id > after)
    return list(session.execute(wanted.order_by(_Row.instance_id).limit(limit)).scalars())


def record_presence(
    session: orm.Session, instance_id: str, host: str | None, now_s: float, kept_s: float
) -> int:
    """Record whether Nova knows an instance; delete its checkpoints after ``kept_s``.

    :param host: its host; empty: none, as when shelved; None: Nova does not know the instance
    :returns: the number of deleted checkpoints
    """
    its = _Row.instance_id == instance_id
    if host is not None:
        present = {"gone_s": None, "off_hosts_s": None if host else now_s}
        was = _Row.off_hosts_s.is_not(None) if host else _Row.off_hosts_s.is_(None)
        session.execute(
            sa.update(_Row).where(its, sa.or_(was, _Row.gone_s.is_not(None))).values(**present)
        )
        return 0
    session.execute(sa.update(_Row).where(its, _Row.gone_s.is_(None)).values(gone_s=now_s))
    gone = session.execute(sa.delete(_Row).where(its, _Row.gone_s <= now_s - kept_s))
    return int(getattr(gone, "rowcount", 0))


def delete_checkpoint(session: orm.Session, checkpoint_id: str) -> bool:
    """Delete a checkpoint; return whether it existed."""
    if session.get(_Row, checkpoint_id) is None:
        return False
    session.execute(sa.delete(_Row).where(_Row.checkpoint_id == checkpoint_id))
    return True


def list_newest(session: orm.Session) -> list[cloud_state.NewestCheckpoint]:
    """Return the newest checkpoint of each instance on a host, MAX_NEWEST at most."""
    last = sa.select(_Row.instance_id, sa.func.max(_Row.registered_s).label("registered_s"))
    last_of = (
        last.where(_Row.gone_s.is_(None), _Row.off_hosts_s.is_(None))
        .group_by(_Row.instance_id)
        .subquery()
    )
    is_last = sa.and_(
        _Row.instance_id == last_of.c.instance_id, _Row.registered_s == last_of.c.registered_s
    )
    fields = (_Row.instance_id, _Row.taken_ms, _Row.interval_s, _Row.changed_bytes)
    wanted = sa.select(*fields).join(last_of, is_last).order_by(_Row.instance_id)
    return [
        cloud_state.NewestCheckpoint(instance_id, taken_ms / 1000, interval_s, changed_bytes)
        for instance_id, taken_ms, interval_s, changed_bytes in session.execute(
            wanted.limit(MAX_NEWEST)
        )
    ]


def holders_of(row: models.Checkpoint) -> list[checkpoint_messages.RegisteredHolder] | None:
    """Return the holders of a checkpoint; None if the row is damaged."""
    return json_columns.decode(row, "holders", list[checkpoint_messages.RegisteredHolder])
