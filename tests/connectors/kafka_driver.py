"""The job that is killed, between topics: `python kafka_driver.py FOLDER SEED [--finish]`.

As `tests/kill/driver.py`, with the same operator and its failures on purpose. Query `ledger` has the operator and goes
from topic to topic, query `table` is plain and writes a table. COORD_KAFKA is the address of the broker. `--finish`:
what the topic of the sink contains is written to a file at the end.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame

import coord_control as cc
from tests.connectors.kafka_tables import table_into
from tests.kafka_kit import read_topic
from tests.kill.books import PARTICIPANTS, Ledger, Order, Report
from tests.kill.driver import Accountant, Worker, session

_OUTPUT: Final = "n long, subtask int, epoch long, first_order long, last_order long, first_report long"


def main(folder: Path, seed: int, *, finish: bool) -> None:
    spark, bootstrap = session(folder), os.environ["COORD_KAFKA"]
    trigger: dict[str, Any] = {"availableNow": True} if finish else {"processingTime": "0 seconds"}

    def rows() -> DataFrame:
        return read_topic(spark, bootstrap, "in", "n LONG, key LONG")

    options = cc.CheckpointOptions(interval_seconds=2, retained=2)
    with cc.Job("killed", spark, root=str(folder / "jobs"), checkpoints=options) as job:
        worker = Worker(folder, seed)
        accountant = job.operator(
            "accountant", Accountant(folder), parallelism=PARTICIPANTS, state=Ledger, down=[Order], up=[Report]
        )
        worked = accountant.apply(rows(), worker.work, schema=_OUTPUT, partition_by=["key"])
        output = worked.mapInArrow(worker.stumble, _OUTPUT).selectExpr("to_json(struct(*)) value")
        to_kafka = output.writeStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        job.start("ledger", to_kafka.option("topic", "out").trigger(**trigger))
        job.start("table", rows().writeStream.foreachBatch(table_into(folder / "table")).trigger(**trigger))
        job.await_termination()
    if finish:
        out = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", "out").load()
        found = [json.loads(row.value) for row in out.selectExpr("cast(value as string)").collect()]
        (folder / "result.json").write_text(json.dumps({"rows": found}))
    spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("--finish", action="store_true")
    main(**vars(parser.parse_args()))
