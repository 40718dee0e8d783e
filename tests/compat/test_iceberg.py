"""Iceberg tables as sinks (PySpark 4.1)."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.compat.table_rollback_driver import TABLE_BACK
from tests.compat.tables_contract import TableContract

pytestmark = pytest.mark.spark


class TestIceberg(TableContract):
    kind = "iceberg"
    steps = (TABLE_BACK,)

    def create(self, session: SparkSession, name: str) -> str:
        session.sql(f"CREATE TABLE lake.db.{name} (value LONG, release STRING) USING iceberg")
        return f"lake.db.{name}"

    def read_late(self, session: SparkSession, folder: Path) -> DataFrame:
        return session.read.format("iceberg").load(f"{folder}/lake/db/late")

    def remove_history(self, session: SparkSession, table: str) -> None:
        catalog, _, name = table.partition(".")
        session.sql(
            f"CALL {catalog}.system.expire_snapshots(table => '{name}', older_than => TIMESTAMP '2100-01-01 00:00:00', "
            "retain_last => 1)"
        )
