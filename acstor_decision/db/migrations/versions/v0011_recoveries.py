# SPDX-License-Identifier: Apache-2.0
"""When checkpoints were given out for recovery: a host may still fetch them."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add it to their table."""
    op.add_column("checkpoints", sa.Column("recovered_s", sa.Double, nullable=True))
