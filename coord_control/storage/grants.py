"""The SQL that lets a dashboard read the control database on PostgreSQL, and nothing more.

A dashboard gets SELECT on every table; where a table contains payloads, results or errors of commands, column by
column, so that these stay hidden unless requested. It gets no right to write, none on sequences, and its transactions
are read-only by default.

Values; any thread.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql

from coord_control.errors import DatabaseUrlInvalid
from coord_control.storage import tables
from coord_control.storage.database import Database

__all__ = ["grants", "revokes"]

#: Columns with the requests of clients and their results.
_PAYLOADS: Final = {"commands": ("payload", "progress", "result", "error"), "audit": ("details",)}

#: Internal tables, of no use on a dashboard.
_INTERNAL: Final = ("upkeep",)


def grants(
    database: Database, user: str, *, with_payloads: bool = False, schema: str = "public", create: bool = False
) -> tuple[str, ...]:
    """Return the statements that let ``user`` read, to be run by the owner of the tables.

    Run them again after every upgrade: they first revoke all earlier grants.

    Args:
        with_payloads: include the payloads of commands.
        create: include a statement that creates the role; set its password by hand.

    Raises:
        DatabaseUrlInvalid: SQLite has no users; the mode of its file decides who can read it.
    """
    role, where = _quoted(database, user), _quote(schema)
    name = _quote(database.url.database or "")
    statements = [f"CREATE ROLE {role} LOGIN"] if create else []
    statements += [
        *revokes(database, user, schema=schema),
        f"GRANT CONNECT ON DATABASE {name} TO {role}",
        f"GRANT USAGE ON SCHEMA {where} TO {role}",
        f"GRANT SELECT ON {where}.alembic_version TO {role}",
    ]
    for table in tables.metadata.sorted_tables:
        if table.name not in _INTERNAL:
            statements.append(f"GRANT SELECT{_columns(table, with_payloads)} ON {where}.{_quote(table.name)} TO {role}")
    statements.append(f"ALTER ROLE {role} SET default_transaction_read_only = on")
    return tuple(statements)


def revokes(database: Database, user: str, *, schema: str = "public") -> tuple[str, ...]:
    """Return the statements that revoke all rights of ``user`` in the schema of the tables.

    Raises:
        DatabaseUrlInvalid: SQLite has no users.
    """
    role, where = _quoted(database, user), _quote(schema)
    return (
        f"REVOKE ALL ON ALL TABLES IN SCHEMA {where} FROM {role}",
        f"REVOKE ALL ON ALL SEQUENCES IN SCHEMA {where} FROM {role}",
        f"REVOKE ALL ON SCHEMA {where} FROM {role}",
    )


def _columns(table: Table, with_payloads: bool) -> str:
    hidden = () if with_payloads else _PAYLOADS.get(table.name, ())
    if not hidden:
        return ""
    return f" ({', '.join(_quote(column.name) for column in table.columns if column.name not in hidden)})"


def _quoted(database: Database, user: str) -> str:
    if database.dialect != "postgresql":
        raise DatabaseUrlInvalid(
            database.display_url, "SQLite has no users: the mode of its file decides who can read it"
        )
    return _quote(user)


def _quote(name: str) -> str:
    if not name or "\0" in name:
        raise ValueError(f"{name!r} cannot be a name in PostgreSQL")
    return postgresql.dialect().identifier_preparer.quote_identifier(name)  # type: ignore[no-untyped-call]
