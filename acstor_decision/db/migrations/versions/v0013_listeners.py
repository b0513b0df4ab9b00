# SPDX-License-Identifier: Apache-2.0
"""Last report of each Glance listener."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

MYSQL: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
}


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "listeners",
        sa.Column("listener", sa.String(255), primary_key=True),
        sa.Column("reported_s", sa.Double, nullable=False),
        **MYSQL,
    )
