# SPDX-License-Identifier: Apache-2.0
"""The key that an operator allows; counts of refused enrolments."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the column and create the table."""
    fingerprint = sa.Column("allowed_fingerprint", sa.String(64), nullable=False, server_default="")
    op.add_column("enrolments", fingerprint)
    op.create_table(
        "refused_enrolments",
        sa.Column("reason", sa.String(32), primary_key=True),
        sa.Column("times", sa.BigInteger, nullable=False),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
    )
