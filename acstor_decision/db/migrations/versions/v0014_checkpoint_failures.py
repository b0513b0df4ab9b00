# SPDX-License-Identifier: Apache-2.0
"""Checkpoint failures by host."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0014"
down_revision = "0013"

MYSQL: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
}


def upgrade() -> None:
    """Create the table."""
    text = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
    op.create_table(
        "checkpoint_failures",
        sa.Column("host", sa.String(255), primary_key=True),
        sa.Column("told_s", sa.Double, nullable=False),
        sa.Column("failing", text, nullable=False),
        **MYSQL,
    )
