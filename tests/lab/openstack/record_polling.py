# SPDX-License-Identifier: Apache-2.0
"""Waits for what an API says of a server or an image.

A request to Nova or Glance takes 60 ms of processor time, a query 3 ms.  So the waits look at the
record's rows in the database, and ask the API when the rows have changed, or after ``ASK_AGAIN_S``.
"""

import time
from collections.abc import Callable

import pymysql

from acstor_common import errors
from tests.lab.openstack import mariadb

PAUSE_S = 0.2
ASK_AGAIN_S = 15.0

_SERVER = """\
SELECT vm_state, task_state, power_state, host, deleted, updated_at
FROM {cell}.instances WHERE uuid = '{id}'"""
_BUILD = """\
SELECT r.id, m.cell_id, m.queued_for_delete, 0, 0, m.updated_at
FROM nova_api.instance_mappings m LEFT JOIN nova_api.build_requests r USING (instance_uuid)
WHERE m.instance_uuid = '{id}'"""
_IMAGE = """\
SELECT i.status, i.updated_at, GROUP_CONCAT(p.name, '=', p.value, p.deleted ORDER BY p.id)
FROM glance.images i LEFT JOIN glance.image_properties p ON p.image_id = i.id
WHERE i.id = '{id}' GROUP BY i.id"""


def rows_of_server(server_id: str) -> str:
    """Return the query for what Nova's databases have of a server."""
    cells = [_SERVER.format(cell=cell, id=server_id) for cell in ("nova_cell0", "nova_cell1")]
    return " UNION ALL ".join([*cells, _BUILD.format(id=server_id)])


def rows_of_image(image_id: str) -> str:
    """Return the query for what Glance's database has of an image and its properties."""
    return _IMAGE.format(id=image_id)


def wait_for(
    database: mariadb.MariaDB,
    rows: str,
    is_so: Callable[[], bool],
    deadline_s: float,
    what: str,
    why: Callable[[], str],
) -> None:
    """Wait until the API says so.

    :param rows: the query for the rows from which the API answers
    :param is_so: asks the API
    :raises errors.Unusable: it did not become true in time; ``why`` tells what is known
    """
    ends_s = time.monotonic() + deadline_s
    seen: object = None
    asked_s = -ASK_AGAIN_S
    while True:
        found = _look(database, rows)
        if found is None or found != seen or time.monotonic() > asked_s + ASK_AGAIN_S:
            seen, asked_s = found, time.monotonic()
            if is_so():
                return
        if time.monotonic() > ends_s:
            raise errors.Unusable(what, f"not so after {deadline_s:g} s: {why()[-2000:]}")
        time.sleep(PAUSE_S)


def _look(database: mariadb.MariaDB, rows: str) -> object:
    """Return the rows; None if the database does not answer."""
    try:
        return database.execute(rows)
    except pymysql.err.MySQLError:
        return None
