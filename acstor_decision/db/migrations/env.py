# SPDX-License-Identifier: Apache-2.0
"""What alembic runs to get at the database: the connection comes from :func:`upgrade`."""

from alembic import context

from acstor_decision.db import models

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=models.Base.metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
