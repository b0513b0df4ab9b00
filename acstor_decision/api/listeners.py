# SPDX-License-Identifier: Apache-2.0
"""Listeners beside Glance: each reports that it runs, so a silent one is noticed."""

import datetime
import http
from typing import Annotated

import msgspec

from acstor_common import patterns
from acstor_decision.api import operation
from acstor_decision.core import health
from acstor_decision.db import listeners
from acstor_decision.db import models

RULE = "role:acstor-prepare or role:service"


class Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a listener says of itself.

    :param listener: the name of its host
    """

    listener: Annotated[str, patterns.whole(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")]


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """A listener.

    :param listener: the name of its host
    :param is_silent: it has not reported for some minutes
    """

    listener: str
    reported_at: datetime.datetime
    is_silent: bool


class Listeners(msgspec.Struct, frozen=True):
    """Listeners that reported within a day, and the last ones if none did."""

    listeners: list[Listener]


def every(call: operation.Call) -> Listeners:
    """Answer with the listeners."""
    return Listeners([_shown(row, call.wall()) for row in call.store.listeners()])


def report(call: operation.Call) -> Listeners:
    """Note that a listener runs."""
    if not call.store.note_listener(call.body.listener, call.wall()):
        message = f"{listeners.MOST} listeners are known, and no more may be"
        raise operation.Refused(http.HTTPStatus.CONFLICT, message)
    return every(call)


def _shown(row: models.Listener, now_s: float) -> Listener:
    return Listener(
        listener=row.listener,
        reported_at=datetime.datetime.fromtimestamp(row.reported_s, datetime.UTC),
        is_silent=now_s - row.reported_s > health.LISTENER_S,
    )


OPERATIONS = (
    operation.Operation(
        "listener:list",
        "GET",
        "/v1/listeners",
        "List the listeners beside Glance",
        Listeners,
        every,
        rule=f"{RULE} or {operation.READER}",
    ),
    operation.Operation(
        "listener:report",
        "POST",
        "/v1/listeners",
        "Report that a listener beside Glance runs",
        Listeners,
        report,
        rule=f"{RULE} or {operation.ADMIN}",
        body=Report,
    ),
)
