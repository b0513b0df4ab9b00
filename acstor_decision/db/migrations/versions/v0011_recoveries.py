# SPDX-License-Identifier: Apache-2.0
"""Start of a recovery from a checkpoint."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add the column."""
    op.add_column("checkpoints", sa.Column("recovered_s", sa.Double, nullable=True))
