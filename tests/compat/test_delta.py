"""Delta tables as sinks (PySpark 4.2)."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.compat.tables_contract import TableContract

pytestmark = pytest.mark.spark


class TestDelta(TableContract):
    kind = "delta"

    def create(self, session: SparkSession, name: str) -> str:
        session.sql(f"CREATE TABLE {name} (value LONG, release STRING) USING delta")
        return name

    def remove_history(self, session: SparkSession, table: str) -> None:
        session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        session.sql(f"OPTIMIZE {table}")
        session.sql(f"VACUUM {table} RETAIN 0 HOURS")
