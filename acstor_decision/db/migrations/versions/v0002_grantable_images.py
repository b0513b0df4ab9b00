# SPDX-License-Identifier: Apache-2.0
"""Images that hosts may read by grants."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "grantable_images",
        sa.Column("image_id", sa.String(36), primary_key=True),
        sa.Column("named_s", sa.Double, nullable=False),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
    )
