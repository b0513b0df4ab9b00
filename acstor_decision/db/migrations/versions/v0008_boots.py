# SPDX-License-Identifier: Apache-2.0
"""Timelines of servers' boots."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0008"
down_revision = "0007"

MYSQL: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
}


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "boots",
        sa.Column("host", sa.String(255), primary_key=True),
        sa.Column("server_id", sa.String(36), primary_key=True),
        sa.Column("told_s", sa.Double, nullable=False),
        sa.Column(
            "timeline",
            sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb"),
            nullable=False,
        ),
        sa.Index("boots_by_server", "server_id"),
        sa.Index("boots_by_time", "told_s"),
        **MYSQL,
    )
