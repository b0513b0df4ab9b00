# SPDX-License-Identifier: Apache-2.0
"""What hosts lack of an image: its zeros are in no cache, and missing nowhere."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the column; samples fill it."""
    op.add_column("held_images", sa.Column("missing_bytes", sa.BigInteger))
