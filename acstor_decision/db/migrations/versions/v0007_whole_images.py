# SPDX-License-Identifier: Apache-2.0
"""Fill status of images on hosts, and where they are used."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the columns; samples fill them."""
    for name in ("is_used", "is_whole"):
        column = sa.Column(name, sa.Boolean, nullable=False, server_default=sa.false())
        op.add_column("held_images", column)
    op.add_column("held_images", sa.Column("whole", sa.Text))
    op.create_index("held_images_needed", "held_images", ["is_used", "is_whole", "image_id"])
