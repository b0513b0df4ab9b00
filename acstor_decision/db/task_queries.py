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
from acstor_decision.db import models

ROW = models.GivenTask


class SentTask(NamedTuple):
    """A task, its host and when it was sent."""

    host: str
    given_s: float
    task: decision_messages.ImageTask


def record_task(
    session: orm.Session, hosts: Sequence[str], task: decision_messages.ImageTask, given_s: float
) -> None:
    """Store a task of hosts, in place of the previous one for this image."""
    former = sa.delete(ROW).where(ROW.host.in_(hosts), ROW.image_id == task.image_id)
    session.execute(former)
    values = {
        "image_id": task.image_id,
        "request": task.request,
        "given_s": given_s,
        "task": msgspec.json.encode(task).decode(),
    }
    session.execute(sa.insert(ROW), [{"host": host, **values} for host in sorted(hosts)])


def settle_tasks(session: orm.Session, since_s: float) -> list[SentTask]:
    """Return unacknowledged tasks sent since a time; delete the others."""
    left = []
    held = models.HeldImage
    is_its = sa.and_(held.host == ROW.host, held.image_id == ROW.image_id)
    progress_of = sa.select(ROW, held.task).outerjoin(held, is_its).order_by(ROW.host, ROW.image_id)
    for row, progress in session.execute(progress_of):
        if row.given_s < since_s or _request_of(progress) == row.request:
            same = (ROW.host == row.host, ROW.image_id == row.image_id, ROW.request == row.request)
            session.execute(sa.delete(ROW).where(*same))
        else:
            task = msgspec.json.decode(row.task, type=decision_messages.ImageTask)
            left.append(SentTask(row.host, row.given_s, task))
    return left


def _request_of(text: str | None) -> int | None:
    progress = msgspec.json.decode(text or "null", type=decision_messages.TaskProgress | None)
    return progress.request if progress else None
