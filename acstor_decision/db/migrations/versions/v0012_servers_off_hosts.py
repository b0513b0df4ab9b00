# SPDX-License-Identifier: Apache-2.0
"""Since when servers with checkpoints are on no host: no new ones are due."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add it to the table of checkpoints."""
    op.add_column("checkpoints", sa.Column("off_hosts_s", sa.Double, nullable=True))
