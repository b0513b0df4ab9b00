# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of servers' disks."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0009"
down_revision = "0008"

MYSQL: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
}


def upgrade() -> None:
    """Create the table."""
    text = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
    op.create_table(
        "checkpoints",
        sa.Column("checkpoint_id", sa.String(36), primary_key=True),
        sa.Column("instance_id", sa.String(36), nullable=False),
        sa.Column("project_id", sa.String(64), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("vault_disk", sa.String(36), nullable=False),
        sa.Column("image_id", sa.String(36), nullable=False),
        sa.Column("taken_ms", sa.BigInteger, nullable=False),
        sa.Column("told_s", sa.Double, nullable=False),
        sa.Column("consistency", sa.String(16), nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("changed_bytes", sa.BigInteger, nullable=False),
        sa.Column("sent_bytes", sa.BigInteger, nullable=False),
        sa.Column("interval_s", sa.BigInteger, nullable=False),
        sa.Column("manifest_name", sa.String(64), nullable=False),
        sa.Column("holders", text, nullable=False),
        sa.Column("disk_key", sa.String(64), nullable=False),
        sa.Column("gone_s", sa.Double, nullable=True),
        sa.Index("checkpoints_by_instance", "instance_id", "told_s"),
        sa.Index("checkpoints_by_host", "host"),
        sa.Index("checkpoints_by_time", "told_s"),
        **MYSQL,
    )
