# SPDX-License-Identifier: Apache-2.0
"""Images on hosts."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

MYSQL: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
}


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "held_images",
        sa.Column("host", sa.String(255), primary_key=True),
        sa.Column("image_id", sa.String(36), primary_key=True),
        sa.Column("size_bytes", sa.BigInteger),
        sa.Column("cached_bytes", sa.BigInteger),
        sa.Column("boot_image", sa.String(16), nullable=False),
        sa.Column("boot_revision", sa.BigInteger, nullable=False),
        sa.Column("read_local_bytes", sa.BigInteger, nullable=False),
        sa.Column("read_boot_bytes", sa.BigInteger, nullable=False),
        sa.Column("read_peer_bytes", sa.BigInteger, nullable=False),
        sa.Column("read_source_bytes", sa.BigInteger, nullable=False),
        sa.Column("fetched_peer_bytes", sa.BigInteger, nullable=False),
        sa.Column("fetched_source_bytes", sa.BigInteger, nullable=False),
        sa.Column("task", sa.Text),
        sa.Index("held_images_by_image", "image_id"),
        **MYSQL,
    )
