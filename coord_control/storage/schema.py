"""The version of the tables, and how they are created and upgraded.

The first writer creates the tables of an empty database. Existing tables are never changed implicitly: programs of an
older release may be using them, so an older version is an error that names the command to run.

Checking the version costs one read; Alembic is imported only when tables have to be created or changed.

Threads: any; processes that create the tables at the same moment wait for each other.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, inspect, text

from coord_control.errors import DatabaseDamaged, SchemaMismatch

if TYPE_CHECKING:
    from alembic.config import Config

__all__ = ["NEWEST", "OLDEST", "alembic_config", "check", "make_if_empty", "upgrade", "version"]

#: The first and the newest revision in ``migrations/versions``; a test compares them. Versions below the first were of
#: commits before the first release.
OLDEST: Final = "0008"
NEWEST: Final = "0008"

MIGRATIONS: Final = Path(__file__).parent / "migrations"

#: Any number, the same in all releases: the lock for creating or changing the tables on PostgreSQL.
_ADVISORY_LOCK: Final = 0x636F6F7264


def version(connection: Connection) -> str | None:
    """Return the version of the tables, or None if there are none."""
    inspector = inspect(connection)
    if not inspector.has_table("alembic_version"):
        return None
    found: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return found


def check(connection: Connection, database: str) -> None:
    """Check that the tables are those of this release.

    Raises:
        SchemaMismatch: they are older, newer, or missing.
    """
    found = version(connection)
    if found != NEWEST:
        raise SchemaMismatch(database, found, NEWEST, OLDEST)


def make_if_empty(connection: Connection, database: str) -> None:
    """Create the tables of an empty database, within the transaction of ``connection``, or check existing ones.

    Raises:
        SchemaMismatch: they are older or newer.
        DatabaseDamaged: the database contains the tables of another program.
    """
    _wait_for_others(connection)
    if version(connection) is not None:
        check(connection, database)
        return
    foreign = inspect(connection).get_table_names()
    if foreign:
        raise DatabaseDamaged(database, f"it has tables of another program ({', '.join(sorted(foreign)[:3])}, ...)")
    upgrade(connection, database)


def upgrade(connection: Connection, database: str) -> None:
    """Upgrade the tables to the newest version within the transaction of ``connection``; create missing ones.

    Raises:
        SchemaMismatch: they are newer, or older than the first release.
    """
    from alembic import command

    _wait_for_others(connection)
    found = version(connection)
    if found is not None and not OLDEST <= found <= NEWEST:
        raise SchemaMismatch(database, found, NEWEST, OLDEST)
    command.upgrade(alembic_config(connection), "head")


def alembic_config(connection: Connection) -> Config:
    """Return Alembic's configuration for ``connection``."""
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _wait_for_others(connection: Connection) -> None:
    # SQLite has begun with its write lock.
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
