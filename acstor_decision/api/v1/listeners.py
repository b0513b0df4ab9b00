# SPDX-License-Identifier: Apache-2.0
"""Glance listeners and their last reports."""

import datetime
import http

import msgspec

from acstor_common.model import text_constraints
from acstor_decision.api import operation
from acstor_decision.core import health_checks
from acstor_decision.db import listener_queries
from acstor_decision.db import models

RULE = "role:acstor-prepare or role:service"


class ListenerReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A report that a listener runs.

    :param listener: the name of its host
    """

    listener: text_constraints.HostName


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """A Glance listener (``acstor-glance-listener``).

    :param listener: the name of its host
    :param is_silent: it has not reported for three minutes
    """

    listener: str
    reported_at: datetime.datetime
    is_silent: bool


class Listeners(msgspec.Struct, frozen=True):
    """Listeners; while one reports, those silent for a day are dropped."""

    listeners: list[Listener]


def list_listeners(call: operation.Call) -> Listeners:
    """Return the listeners."""
    return Listeners([_shown(row, call.wall()) for row in call.store.list_listeners()])


def report(call: operation.Call) -> Listeners:
    """Record that a listener runs; return all listeners."""
    if not call.store.record_listener(call.body.listener, call.wall()):
        message = f"the limit of {listener_queries.MAX_LISTENERS} listeners is reached"
        raise operation.RequestRefused(http.HTTPStatus.CONFLICT, message)
    return list_listeners(call)


def _shown(row: models.Listener, now_s: float) -> Listener:
    return Listener(
        listener=row.listener,
        reported_at=operation.utc_time(row.reported_s),
        is_silent=now_s - row.reported_s > health_checks.LISTENER_S,
    )


OPERATIONS = (
    operation.Operation(
        "listener:list",
        "GET",
        "/v1/listeners",
        "List the Glance listeners",
        Listeners,
        list_listeners,
        rule=f"{RULE} or {operation.READER}",
    ),
    operation.Operation(
        "listener:report",
        "POST",
        "/v1/listeners",
        "Report that a Glance listener runs",
        Listeners,
        report,
        rule=f"{RULE} or {operation.ADMIN}",
        body=ListenerReport,
    ),
)
