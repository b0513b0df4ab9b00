# SPDX-License-Identifier: Apache-2.0
"""Environment of alembic; :func:`upgrade` supplies the connection."""

from alembic import context

from acstor_decision.db import models

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=models.Base.metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
