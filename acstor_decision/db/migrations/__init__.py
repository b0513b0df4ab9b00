# SPDX-License-Identifier: Apache-2.0
"""Migrations of the schema, by alembic."""

import pathlib

import alembic.util
from alembic import command
from alembic import config
from alembic.runtime import migration
from alembic.script import ScriptDirectory
from sqlalchemy import engine

from acstor_common import errors

FOLDER = pathlib.Path(__file__).parent


def _config(connection: engine.Connection) -> config.Config:
    made = config.Config()
    made.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    made.attributes["connection"] = connection
    return made


def upgrade(used: engine.Engine) -> None:
    """Upgrade the schema to this version; Unusable if it is of a later one."""
    try:
        with used.begin() as connection:
            command.upgrade(_config(connection), "head")
    except alembic.util.CommandError as e:
        raise errors.Unusable(
            "[database] connection",
            f"its tables are those of a later version ({e})",
            "Install that version again, or restore the backup that you made before",
        ) from e


def is_current(used: engine.Engine) -> bool:
    """Return whether the schema has this version."""
    with used.connect() as connection:
        newest = ScriptDirectory.from_config(_config(connection)).get_current_head()
        return migration.MigrationContext.configure(connection).get_current_revision() == newest
