# SPDX-License-Identifier: Apache-2.0
"""Statements on tasks sent to hosts; :mod:`acstor_decision.db.database` runs them.

A row exists until a sample acknowledges the task. A host has one for each image, the last.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy import orm

from acstor_common.wire import decision_messages
from acstor_decision.db import image_queries
from acstor_decision.db import json_columns
from acstor_decision.db import models

_Row = models.PendingTask


class SentTask(NamedTuple):
    """A task, its host and when it was sent."""

    host: str
    sent_s: float
    task: decision_messages.ImageTask


def has_tasks(session: orm.Session) -> bool:
    """Return whether a task waits for its acknowledgement."""
    return bool(session.execute(sa.select(sa.exists(sa.select(_Row.host)))).scalar())


def record_task(
    session: orm.Session, hosts: Sequence[str], task: decision_messages.ImageTask, sent_s: float
) -> None:
    """Store a task of hosts, in place of the previous one for this image."""
    if not hosts:
        return
    former = sa.delete(_Row).where(_Row.host.in_(hosts), _Row.image_id == task.image_id)
    session.execute(former)
    values = {
        "image_id": task.image_id,
        "request": task.request,
        "sent_s": sent_s,
        "task": msgspec.json.encode(task).decode(),
    }
    session.execute(sa.insert(_Row), [{"host": host, **values} for host in sorted(hosts)])


def settle_tasks(session: orm.Session, since_s: float) -> list[SentTask]:
    """Return unacknowledged tasks sent since a time; delete the others and damaged ones."""
    left = []
    held = models.HeldImage
    is_its = sa.and_(held.host == _Row.host, held.image_id == _Row.image_id)
    wanted = sa.select(_Row, held).outerjoin(held, is_its).order_by(_Row.host, _Row.image_id)
    for row, image in session.execute(wanted):
        progress = image_queries.task_of(image) if image else None
        task = json_columns.decode(row, "task", decision_messages.ImageTask)
        is_settled = progress is not None and progress.request == row.request
        if row.sent_s < since_s or is_settled or task is None:
            same = (
                _Row.host == row.host,
                _Row.image_id == row.image_id,
                _Row.request == row.request,
            )
            session.execute(sa.delete(_Row).where(*same))
        else:
            left.append(SentTask(row.host, row.sent_s, task))
    return left
