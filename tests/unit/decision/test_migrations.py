# SPDX-License-Identifier: Apache-2.0
"""Databases of former versions, brought to this one with what they hold."""

import sqlalchemy as sa
from alembic import command

from acstor_decision.db import database
from acstor_decision.db import migrations


def test_hosts_that_enrolled_before_keys_could_be_named_go_on(configure):
    store = database.Database(configure())
    with store.engine().begin() as connection:
        command.upgrade(migrations._config(connection), "0004")
        connection.execute(
            sa.text(
                "insert into enrolments (host, state, user_id, address, public_key, former_key, "
                "revoked_before_s) values ('h1', 'enrolled', 'u', '', 'key', '', 7)"
            )
        )
    assert not store.is_current()
    store.upgrade()
    assert store.is_current()
    [row] = store.enrolments()
    assert (row.host, row.public_key, row.revoked_before_s) == ("h1", "key", 7)
    assert row.allowed_fingerprint == "" and store.refused_enrolments() == {}
    store.close()
