"""Runs migrations on the connection that `registry.storage.database` hands over, inside its transaction.

The configuration is made by a program and there is no ini file, so that an installed wheel migrates the same way as
a checkout. SQLite's data definition is transactional once the driver's own transaction handling is off, which the
engine sees to; a migration that fails therefore leaves nothing behind.
"""

from alembic import context

from headrace.registry.storage.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    transactional_ddl=True,
    transaction_per_migration=False,
    render_as_batch=True,
)
context.run_migrations()
