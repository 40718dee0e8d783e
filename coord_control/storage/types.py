"""The column types of the control database: the same values in SQLite and in PostgreSQL.

Values; any thread.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import BigInteger, DateTime, Dialect, Integer, String, Text, TypeDecorator

__all__ = ["Id", "Message", "Name", "UtcDateTime"]

#: Row numbers. SQLite only assigns them to a plain INTEGER column.
Id: Final = BigInteger().with_variant(Integer, "sqlite")

_CUT: Final = "..."


class UtcDateTime(TypeDecorator[datetime]):
    """An aware datetime in UTC. SQLite has no time zones and keeps the UTC digits, which sort as the times do."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Name(TypeDecorator[str]):
    """Text that identifies something, at most ``length`` characters; other values are refused.

    SQLite does not check the length of a column, and PostgreSQL accepts no NUL: both are checked here, so that both
    databases refuse the same values.
    """

    impl = String
    cache_ok = True

    def __init__(self, length: int) -> None:
        super().__init__(length=length)
        self.length = length

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None:
            return None
        if len(value) > self.length:
            raise ValueError(f"a text of {len(value)} characters is longer than the {self.length} that fit")
        if "\0" in value:
            raise ValueError("a text contains a NUL character")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError("a text is no valid Unicode") from None
        return value


class Message(TypeDecorator[str]):
    """Text for users, such as the message of an error: shortened to fit instead of refused."""

    impl = Text
    cache_ok = True

    def __init__(self, length: int = 8000) -> None:
        super().__init__()
        self.length = length

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        if value is None:
            return None
        text = str(value).replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
        return text if len(text) <= self.length else text[: self.length - len(_CUT)] + _CUT
