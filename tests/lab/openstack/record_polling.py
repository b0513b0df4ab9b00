# SPDX-License-Identifier: Apache-2.0
"""Waits for a state of a server or an image in an API.

A request to Nova or Glance takes 60 ms of CPU time, a query 3 ms.  So it polls the record's rows
in the database, and calls the API after a change or after ``ASK_AGAIN_S``.
"""

import time
from collections.abc import Callable
from typing import Any

import pymysql

from acstor_common import errors
from tests.lab.openstack import mariadb

Rows = list[tuple[Any, ...]]
PAUSE_S = 0.2
ASK_AGAIN_S = 15.0

_SERVER = """\
SELECT vm_state, task_state, power_state, host, deleted, updated_at
FROM {cell}.instances WHERE uuid = '{id}'"""
_BUILD = """\
SELECT r.id, NULL, m.cell_id, m.queued_for_delete, 0, m.updated_at
FROM nova_api.instance_mappings m LEFT JOIN nova_api.build_requests r USING (instance_uuid)
WHERE m.instance_uuid = '{id}'"""
_IMAGE = """\
SELECT i.status, i.updated_at, GROUP_CONCAT(p.name, '=', p.value, p.deleted ORDER BY p.id)
FROM glance.images i LEFT JOIN glance.image_properties p ON p.image_id = i.id
WHERE i.id = '{id}' GROUP BY i.id"""


def rows_of_server(server_id: str) -> str:
    """Return the query for a server's rows in Nova's databases."""
    cells = [_SERVER.format(cell=cell, id=server_id) for cell in ("nova_cell0", "nova_cell1")]
    return " UNION ALL ".join([*cells, _BUILD.format(id=server_id)])


def has_task(rows: Rows) -> bool:
    """Return whether Nova works on the server of :func:`rows_of_server`."""
    return any(isinstance(task, str) for _state, task, *_ in rows)


def rows_of_image(image_id: str) -> str:
    """Return the query for an image's row and properties in Glance's database."""
    return _IMAGE.format(id=image_id)


def wait_for(
    database: mariadb.MariaDB,
    rows: str,
    is_so: Callable[[], bool],
    deadline_s: float,
    what: str,
    why: Callable[[], str],
    is_early: Callable[[Rows], bool] = lambda rows: False,
) -> None:
    """Wait until ``is_so`` is true.

    :param rows: the query for the rows behind the API's answer
    :param is_so: calls the API
    :param is_early: whether rows exclude that ``is_so`` is true
    :raises errors.Unusable: it was not true in time; ``why`` returns the details
    """
    ends_s = time.monotonic() + deadline_s
    seen: Rows | None = None
    asked_s = -ASK_AGAIN_S
    while True:
        found = _look(database, rows)
        is_worth = found is None or (found != seen and not is_early(found))
        seen = found
        if is_worth or time.monotonic() > asked_s + ASK_AGAIN_S:
            asked_s = time.monotonic()
            if is_so():
                return
        if time.monotonic() > ends_s:
            raise errors.Unusable(what, f"not so after {deadline_s:g} s: {why()[-2000:]}")
        time.sleep(PAUSE_S)


def _look(database: mariadb.MariaDB, rows: str) -> Rows | None:
    """Return the rows, None if the database does not answer."""
    try:
        return database.execute(rows)
    except pymysql.err.MySQLError:
        return None
