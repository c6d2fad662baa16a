"""Runs migrations on the connection that `registry.storage.database` passes, inside its transaction.

The configuration is created in Python and not read from an ini file, so that an installed wheel migrates like a
checkout. SQLite changes tables within transactions once the driver's own transaction handling is off.
`registry.storage.engines` turns it off, so a migration that fails changes nothing.
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
