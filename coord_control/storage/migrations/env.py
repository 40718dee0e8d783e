"""Alembic runs this: every migration works on the connection, and in the transaction, that it is given."""

from alembic import context

from coord_control.storage.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata)
context.run_migrations()
