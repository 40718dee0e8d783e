"""Which version the tables have, and how they come to the newest one.

An empty database is brought to the newest version by the first writer, whether it is a file or a PostgreSQL database:
whoever has just made one wants exactly that. Tables that exist are never changed behind anybody's back: other programs
of an older release may be using them, so an older version is an error that names the command.

Looking at the version costs one read; Alembic is imported only when something has to be made.

Threads: any; processes that make the tables at the same moment wait for each other.
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
OLDEST: Final = "0006"
NEWEST: Final = "0006"

MIGRATIONS: Final = Path(__file__).parent / "migrations"

#: Any number, the same in all releases: who makes or changes the tables of a PostgreSQL database holds this lock.
_ADVISORY_LOCK: Final = 0x636F6F7264


def version(connection: Connection) -> str | None:
    """Return the version of the tables; None: there are none."""
    inspector = inspect(connection)
    if not inspector.has_table("alembic_version"):
        return None
    found: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return found


def check(connection: Connection, database: str) -> None:
    """Make sure that the tables are those of this release.

    Raises:
        SchemaMismatch: they are older, newer, or not there.
    """
    found = version(connection)
    if found != NEWEST:
        raise SchemaMismatch(database, found, NEWEST, OLDEST)


def make_if_empty(connection: Connection, database: str) -> None:
    """Make the tables in a database that has none, within the transaction of ``connection``, or check them.

    Raises:
        SchemaMismatch: they are older or newer.
        DatabaseDamaged: there are tables, and they are somebody else's.
    """
    _wait_for_others(connection)
    if version(connection) is not None:
        check(connection, database)
        return
    foreign = inspect(connection).get_table_names()
    if foreign:
        raise DatabaseDamaged(database, f"it has tables of something else ({', '.join(sorted(foreign)[:3])}, ...)")
    upgrade(connection, database)


def upgrade(connection: Connection, database: str) -> None:
    """Bring the tables to the newest version within the transaction of ``connection``; make them if there are none.

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
    """Return the configuration with which Alembic works on ``connection``."""
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _wait_for_others(connection: Connection) -> None:
    # SQLite has begun with its write lock.
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
