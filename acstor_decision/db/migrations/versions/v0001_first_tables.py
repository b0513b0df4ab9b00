# SPDX-License-Identifier: Apache-2.0
"""The first tables: hosts, rings, traffic."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None

MYSQL: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
}
LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "hosts",
        sa.Column("host", sa.String(255), primary_key=True),
        sa.Column("is_drained", sa.Boolean, nullable=False),
        sa.Column("address", sa.String(64), nullable=False),
        sa.Column("location", sa.String(255), nullable=False),
        sa.Column("first_seen_s", sa.Double),
        sa.Column("seen_s", sa.Double),
        sa.Column("ring_epoch", sa.BigInteger, nullable=False),
        sa.Column("link_bytes_s", sa.BigInteger, nullable=False),
        sa.Column("received_bytes_s", sa.Double, nullable=False),
        sa.Column("sent_bytes_s", sa.Double, nullable=False),
        sa.Column("chunks_received_bytes_s", sa.Double, nullable=False),
        sa.Column("chunks_sent_bytes_s", sa.Double, nullable=False),
        sa.Column("cache_bytes", sa.BigInteger, nullable=False),
        sa.Column("cache_limit_bytes", sa.BigInteger, nullable=False),
        sa.Column("overloaded_in_a_row", sa.Integer, nullable=False),
        sa.Column("peers", LONG_TEXT),
        **MYSQL,
    )
    op.create_table(
        "rings",
        sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("published_s", sa.Double, nullable=False),
        sa.Column("reason", sa.String(32), nullable=False),
        sa.Column("overloaded", LONG_TEXT, nullable=False),
        sa.Column("moved", sa.Integer, nullable=False),
        sa.Column("vnodes", sa.Integer, nullable=False),
        sa.Column("hosts", sa.Integer, nullable=False),
        sa.Column("instance", sa.String(255), nullable=False),
        sa.Column("ring_table", LONG_TEXT, nullable=False),
        **MYSQL,
    )
    op.create_table(
        "traffic",
        sa.Column("host", sa.String(255), primary_key=True),
        sa.Column("collected_s", sa.Double, primary_key=True),
        sa.Column("received_bytes_s", sa.Double, nullable=False),
        sa.Column("sent_bytes_s", sa.Double, nullable=False),
        sa.Column("chunks_received_bytes_s", sa.Double, nullable=False),
        sa.Column("chunks_sent_bytes_s", sa.Double, nullable=False),
        sa.Index("traffic_by_time", "collected_s"),
        **MYSQL,
    )
