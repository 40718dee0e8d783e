"""A job to be killed that writes a topic into a Delta table: `python kafka_delta_driver.py FOLDER [--finish]`.

Its query is plain. COORD_KAFKA is the address of the broker. `--finish`: it processes what is there, ends, and writes
what the table holds to FOLDER/result.json.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import coord_control as cc
from tests.kafka_kit import read_topic

__all__ = ["QUERY", "TOPIC"]

TOPIC = "rows"
QUERY = "rows"


def main(folder: Path, *, finish: bool) -> None:
    told = json.loads((folder / "settings.json").read_text())
    builder = SparkSession.builder.master("local[2]").appName("kafka to delta").config("spark.ui.enabled", "false")
    for name, value in told["settings"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    # Without a catalog that outlives the driver the table is registered again where its files are.
    table = "default.rows"
    spark.sql(f"CREATE TABLE IF NOT EXISTS {table} (n LONG, key LONG) USING delta LOCATION '{folder / 'table'}'")
    trigger: dict[str, Any] = {"availableNow": True} if finish else {"processingTime": "0 seconds"}
    with cc.Job("kafka", spark, root=str(folder / "jobs"), checkpoints=cc.CheckpointOptions(interval_seconds=2)) as job:
        rows = read_topic(spark, os.environ["COORD_KAFKA"], TOPIC, "n LONG, key LONG")
        job.start(QUERY, rows.writeStream.format("delta").outputMode("append").trigger(**trigger), table=table)
        job.await_termination()
    if finish:
        (folder / "result.json").write_text(json.dumps(sorted(row.n for row in spark.table(table).collect())))
    spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--finish", action="store_true")
    main(**vars(parser.parse_args()))
