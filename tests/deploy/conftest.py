"""The PostgreSQL server of the storage tests, for the script that makes the databases."""

from __future__ import annotations

from tests.storage.conftest import server

__all__ = ["server"]
