"""A driver that restores its job with its table: `python table_rollback_driver.py FOLDER RELEASE [--restore REF]`.

One plain query copies FOLDER/in, a file per epoch, into a table, and marks each row with the release. It processes what
is there, takes a savepoint, writes its path to FOLDER/savepoint, what the table holds to FOLDER/result.json, and ends.
It stops where it is asked to: at a step of tests/kill/pausing.py, or at one of its own.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import coord_control as cc
from coord_control.spark.sinks import delta
from coord_control.spark.sinks.table_format import FORMATS
from tests.kill.pausing import PAUSE_VARIABLE, Step, pause_if_asked, wait_to_be_killed
from tests.patience import SECONDS
from tests.spark.jobs import SCHEMA

__all__ = ["FILES_BACK", "TABLE_BACK"]

#: The table is back, and nothing says so yet; of Delta's two commits there is the first.
TABLE_BACK: Final = "TABLE_BACK"
FILES_BACK: Final = "FILES_BACK"

_NAMES: Final = {"delta": "default.copies", "iceberg": "lake.db.copies"}


def main(folder: Path, release: str, restore: str | None) -> None:
    told = json.loads((folder / "settings.json").read_text())
    builder = SparkSession.builder.master("local[2]").appName("copies").config("spark.ui.enabled", "false")
    for name, value in told["settings"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    kind, table = told["kind"], _NAMES[told["kind"]]
    location = f"LOCATION '{folder / 'table'}'" if kind == "delta" else ""
    spark.sql(f"CREATE TABLE IF NOT EXISTS {table} (value LONG, release STRING) USING {kind} {location}")
    _pause(kind, folder)
    with cc.Job("copies", spark, root=str(folder / "jobs"), restore_from=restore, roll_back_sinks=True) as job:
        source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / "in"))
        writer = source.select("value", sf.lit(release).alias("release")).writeStream.format(kind).outputMode("append")
        job.start("copy", writer.trigger(availableNow=True), table=table)
        assert job.await_termination(SECONDS)
        (folder / "savepoint").write_text(job.trigger_savepoint().wait(SECONDS).path)
    spark.sql(f"REFRESH TABLE {table}")
    found = sorted((row.value, row.release) for row in spark.table(table).collect())
    (folder / "result.json").write_text(json.dumps(found))
    spark.stop()


def _pause(kind: str, folder: Path) -> None:
    wanted = os.environ.get(PAUSE_VARIABLE)
    if wanted == TABLE_BACK:
        table_format: Any = FORMATS[kind]
        table_format.roll_back = _pausing(folder, table_format.roll_back)
    elif wanted == FILES_BACK:
        delta._set_transactions = _pausing(folder, lambda *_: None)
    elif wanted in Step.__members__:
        pause_if_asked(folder)


def _pausing(folder: Path, before: Callable[..., object]) -> Callable[..., None]:
    def paused(*arguments: object) -> None:
        before(*arguments)
        wait_to_be_killed(folder)

    return paused


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("release")
    parser.add_argument("--restore")
    main(**vars(parser.parse_args()))
