# SPDX-License-Identifier: Apache-2.0
"""Health of hosts."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add the column; samples fill it."""
    text = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
    op.add_column("hosts", sa.Column("health", text))
