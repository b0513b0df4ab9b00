# SPDX-License-Identifier: Apache-2.0
"""Databases of former versions, brought to this one with what they hold."""

import sqlalchemy as sa
from alembic import command

from acstor_decision.db import database
from acstor_decision.db import migrations
from acstor_decision.db import models


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
    [row] = store.list_enrolments()
    assert (row.host, row.public_key, row.revoked_before_s) == ("h1", "key", 7)
    assert row.allowed_fingerprint == "" and store.refused_enrolments() == {}
    store.close()


def test_of_images_that_hosts_told_before_nothing_says_that_they_are_used(configure):
    store = database.Database(configure())
    image_id = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
    with store.engine().begin() as connection:
        command.upgrade(migrations._config(connection), "0006")
        counted = [f"read_{where}_bytes" for where in ("local", "boot", "peer", "source")]
        counted += ["boot_revision", "fetched_peer_bytes", "fetched_source_bytes"]
        connection.execute(
            sa.text(
                f"insert into held_images (host, image_id, boot_image, {', '.join(counted)}) "
                f"values ('h1', '{image_id}', '', {', '.join('0' for _ in counted)})"
            )
        )
    store.upgrade()
    [row] = store.engine().connect().execute(sa.select(models.HeldImage.__table__)).mappings()
    assert (row["is_used"], row["is_whole"], row["whole"]) == (False, False, None)
    store.close()
