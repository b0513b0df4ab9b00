# SPDX-License-Identifier: Apache-2.0
"""Bytes of an image that a host lacks; zeros do not count."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the column; samples fill it."""
    op.add_column("held_images", sa.Column("missing_bytes", sa.BigInteger))
