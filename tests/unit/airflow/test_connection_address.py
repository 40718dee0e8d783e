"""What an Airflow connection says about the control database."""

from __future__ import annotations

from typing import Any

import pytest

from coord_control.airflow.connection_address import database_url
from coord_control.storage.engine import parse_url

NOTHING: dict[str, Any] = {"host": None, "port": None, "login": None, "database": None, "options": {}}


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({}, None),
        ({"host": "", "database": ""}, None),
        ({"database": "var/lib/control.db"}, "sqlite:////var/lib/control.db"),
        ({"database": "/var/lib/control.db"}, "sqlite:////var/lib/control.db"),
        ({"host": "db", "database": "coord"}, "postgresql://db/coord"),
        ({"host": "db", "port": 5433, "login": "a/b", "database": "coord"}, "postgresql://a%2Fb@db:5433/coord"),
        ({"host": "::1", "port": 5432, "database": "coord"}, "postgresql://[::1]:5432/coord"),
        (
            {"host": "db", "database": "coord", "options": {"sslmode": "require"}},
            "postgresql://db/coord?sslmode=require",
        ),
    ],
)
def test_a_connection_is_an_address(given: dict[str, Any], url: str | None) -> None:
    assert database_url(**NOTHING | given) == url
    if url is not None:
        parse_url(url)  # of one of the two kinds


def test_the_file_of_an_address_is_that_of_the_connection() -> None:
    url = database_url(**NOTHING | {"database": "tmp/a.db"})

    assert parse_url(url or "").database == "/tmp/a.db"
