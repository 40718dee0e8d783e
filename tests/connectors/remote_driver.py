"""A job whose root is on another storage, to be killed: `python remote_driver.py ROOT FOLDER [--finish]`.

It reads the numbered rows in FOLDER/in, a file per epoch, and writes a file per epoch into FOLDER/out. The address and
the settings of the storage come from PYSPARK_SUBMIT_ARGS. `--finish`: it processes what is there, ends, and compares
both ends of the dialogue between coordinator and subtasks.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import coord_control as cc
from coord_control.errors import CoordControlError
from coord_control.exit_codes import exit_code_of
from tests.spark.jobs import SCHEMA, Dialogue, apply, talk


def main(root: str, folder: Path, *, finish: bool) -> None:
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    builder = SparkSession.builder.master("local[2,3]").appName("remote")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    output = folder / "out"

    def keep(frame: DataFrame, epoch: int) -> None:
        rows = [row.value for row in frame.collect()]
        (output / f".{epoch}").write_text(json.dumps(rows))
        (output / f".{epoch}").rename(output / f"{epoch}.json")

    trigger: dict[str, Any] = {"availableNow": True} if finish else {"processingTime": "0 seconds"}
    coordinator = Dialogue()
    options = cc.CheckpointOptions(interval_seconds=3, retained=1)
    with cc.Job("flights", spark, root=root, checkpoints=options) as job:
        rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / "in"))
        job.start("q", apply(talk(job, coordinator), rows).writeStream.foreachBatch(keep).trigger(**trigger))
        job.await_termination()
    if finish:
        written = [value for path in output.glob("[0-9]*.json") for value in json.loads(path.read_text())]
        coordinator.check(written, prompt=False)
    spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--finish", action="store_true")
    try:
        main(**vars(parser.parse_args()))
    except CoordControlError as error:
        print(error, file=sys.stderr)
        sys.exit(exit_code_of(error))
