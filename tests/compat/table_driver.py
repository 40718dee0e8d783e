"""A job to be killed that writes to two tables: `python table_driver.py FOLDER [--finish]`.

One query appends its rows; the other one merges sums by key in a `foreachBatch` function, once per epoch. `--finish`:
it processes what is there, ends, and writes what both tables hold to FOLDER/result.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

import coord_control as cc
from tests.spark.jobs import SCHEMA

#: What tables are called.
_NAMES: Final = {"delta": "default.{}", "iceberg": "lake.db.{}"}


def main(folder: Path, *, finish: bool) -> None:
    told = json.loads((folder / "settings.json").read_text())
    builder = SparkSession.builder.master("local[2]").appName("tables")
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", **told["settings"]}
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    kind, appended, merged = told["kind"], *(_NAMES[told["kind"]].format(name) for name in ("appended", "merged"))
    # Without a catalog that outlives the driver, Delta's tables are registered again where their files are.
    location = {name: f"LOCATION '{folder / name}'" if kind == "delta" else "" for name in ("appended", "merged")}
    spark.sql(f"CREATE TABLE IF NOT EXISTS {appended} (key STRING, value LONG) USING {kind} {location['appended']}")
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {merged} (key STRING, total LONG, epoch LONG) USING {kind} {location['merged']}"
    )

    def merge(batch: DataFrame, epoch: int) -> None:
        session = batch.sparkSession
        batch.createOrReplaceTempView("changes")
        again = ""
        if kind == "delta":  # the transaction says which epochs have been merged
            query = session.sparkContext.getLocalProperty("sql.streaming.queryId")
            session.conf.set("spark.databricks.delta.write.txnAppId", str(query))
            session.conf.set("spark.databricks.delta.write.txnVersion", str(epoch))
        else:  # the rows do
            again = f"AND t.epoch < {epoch}"
        session.sql(
            f"MERGE INTO {merged} AS t USING (SELECT key, sum(value) AS value FROM changes GROUP BY key) AS c "
            f"ON t.key = c.key WHEN MATCHED {again} THEN UPDATE SET total = t.total + c.value, "
            f"epoch = {epoch} WHEN NOT MATCHED THEN INSERT (key, total, epoch) VALUES (c.key, c.value, {epoch})"
        )
        (folder / f"merged-{epoch}").touch()

    trigger: dict[str, Any] = {"availableNow": True} if finish else {"processingTime": "0 seconds"}
    with cc.Job("tables", spark, root=str(folder / "jobs")) as job:
        source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / "in"))
        rows = source.writeStream.format(kind).outputMode("append")
        job.start("append", rows.trigger(**trigger), table=appended)
        job.start("merge", source.writeStream.foreachBatch(merge).trigger(**trigger))
        job.await_termination()
    if finish:
        spark.sql(f"REFRESH TABLE {merged}")  # the function has a session of its own
        values = sorted(row.value for row in spark.table(appended).collect())
        totals = {row.key: row.total for row in spark.table(merged).collect()}
        (folder / "result.json").write_text(json.dumps({"appended": values, "merged": totals}))
    spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--finish", action="store_true")
    main(**vars(parser.parse_args()))
