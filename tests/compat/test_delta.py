"""Delta tables as sinks (PySpark 4.2)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from coord_control.ids import Epoch
from coord_control.spark.sinks.sink_of import sink_of
from coord_control.spark.sinks.table_format import FORMATS
from tests.compat.table_rollback_driver import FILES_BACK, TABLE_BACK
from tests.compat.tables_contract import TableContract
from tests.patience import SECONDS
from tests.spark.jobs import rows
from tests.spark.streams import FileStream

pytestmark = pytest.mark.spark


class TestDelta(TableContract):
    kind = "delta"
    steps = (FILES_BACK, TABLE_BACK)

    def create(self, session: SparkSession, name: str) -> str:
        session.sql(f"CREATE TABLE {name} (value LONG, release STRING) USING delta")
        return name

    def read_late(self, session: SparkSession, folder: Path) -> DataFrame:
        return session.read.format("delta").load(f"{folder}/late")

    def remove_history(self, session: SparkSession, table: str) -> None:
        session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        session.sql(f"OPTIMIZE {table}")
        session.sql(f"VACUUM {table} RETAIN 0 HOURS")

    def test_a_table_with_a_relative_path_is_not_taken_for_a_name(
        self, own_session: SparkSession, source: FileStream, tmp_path: Path
    ) -> None:
        source.add(rows(0))
        writer = source.read(own_session).select("value").writeStream.format("delta").trigger(availableNow=True)
        checkpoint, path = str(tmp_path / "checkpoint"), os.path.relpath(tmp_path / "late")
        query = writer.option("checkpointLocation", checkpoint).option("path", path).start()
        assert query.awaitTermination(SECONDS)
        place = sink_of(own_session, query).place
        assert place == f"file:{tmp_path}/late"
        assert FORMATS["delta"].position(own_session, place, str(query.id), Epoch(0)) == "0"
