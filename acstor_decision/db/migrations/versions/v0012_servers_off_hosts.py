# SPDX-License-Identifier: Apache-2.0
"""Time since which a server with checkpoints is on no host."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add the column."""
    op.add_column("checkpoints", sa.Column("off_hosts_s", sa.Double, nullable=True))
