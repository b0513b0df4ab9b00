# SPDX-License-Identifier: Apache-2.0
"""Keys of the certificate authority and of the table signer; enrolments."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

MYSQL: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
}


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "authority_keys",
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("secret_key", sa.Text, nullable=False),
        sa.Column("certificate", sa.Text, nullable=False),
        sa.Column("made_s", sa.Double, nullable=False),
        sa.Column("signs_from_s", sa.Double, nullable=False),
        sa.Column("trusted_until_s", sa.Double),
        **MYSQL,
    )
    op.create_table(
        "enrolments",
        sa.Column("host", sa.String(255), primary_key=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("user_id", sa.String(255), nullable=False),
        sa.Column("address", sa.String(64), nullable=False),
        sa.Column("public_key", sa.Text, nullable=False),
        sa.Column("former_key", sa.Text, nullable=False),
        sa.Column("asked_s", sa.Double),
        sa.Column("issued_s", sa.Double),
        sa.Column("not_after_s", sa.Double),
        sa.Column("revoked_before_s", sa.BigInteger, nullable=False),
        **MYSQL,
    )
