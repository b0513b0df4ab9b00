# SPDX-License-Identifier: Apache-2.0
"""Tasks that hosts have not acknowledged yet."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

MYSQL: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
}


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "given_tasks",
        sa.Column("host", sa.String(255), primary_key=True),
        sa.Column("image_id", sa.String(36), primary_key=True),
        sa.Column("request", sa.BigInteger, nullable=False),
        sa.Column("given_s", sa.Double, nullable=False),
        sa.Column("task", sa.Text, nullable=False),
        **MYSQL,
    )
