"""Iceberg tables as sinks (PySpark 4.1)."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.compat.table_rollback_driver import TABLE_BACK
from tests.compat.tables_contract import TableContract

pytestmark = pytest.mark.spark


class TestIceberg(TableContract):
    kind = "iceberg"
    steps = (TABLE_BACK,)

    def create(self, session: SparkSession, name: str) -> str:
        session.sql(f"CREATE TABLE lake.db.{name} (value LONG, release STRING) USING iceberg")
        return f"lake.db.{name}"

    def remove_history(self, session: SparkSession, table: str) -> None:
        catalog, _, name = table.partition(".")
        session.sql(
            f"CALL {catalog}.system.expire_snapshots(table => '{name}', older_than => TIMESTAMP '2100-01-01 00:00:00', "
            "retain_last => 1)"
        )
