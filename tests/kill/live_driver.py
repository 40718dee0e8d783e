"""The job whose live value changes all the time while it is killed: `python -m tests.kill.live_driver FOLDER`.

Two queries use the value, each in several places. Every execution of an epoch leaves a file with what its rows have
seen; every change leaves a line before it is asked for, and one when it is accepted. Both outlive every process. It
ends when FOLDER/stop is there.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Final

from pydantic import BaseModel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import coord_control as cc

__all__ = ["CHANGE_SECONDS", "Knob"]

CHANGE_SECONDS: Final = 0.1


class Knob(BaseModel):
    """What is changed: a number that no change before it has had."""

    number: int = 0


def _keep(folder: Path, query: str, epoch: int, seen: list[list[int]]) -> None:
    place = folder / "seen" / query
    place.mkdir(parents=True, exist_ok=True)
    name = f"{epoch:06}-{uuid.uuid4().hex}.json"
    (place / f".{name}").write_text(json.dumps(seen))
    (place / f".{name}").rename(place / name)


def _note(folder: Path, line: dict[str, object]) -> None:
    with (folder / "changes").open("a") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def main(folder: Path) -> None:
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = spark.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    with cc.Job("live", session, root=str(folder / "jobs"), control="none", metrics="none") as job:
        knob = job.live("knob", Knob())

        def keep(query: str) -> cc.Job:
            rows = session.readStream.format("rate").option("rowsPerSecond", 20).load()
            both = rows.withColumn("a", knob.number).union(rows.withColumn("a", knob.number))
            both = both.where(F.col("value") + knob.number >= knob.number).withColumn("b", knob.number + F.lit(0))

            def take(frame: DataFrame, epoch: int) -> None:
                found = frame.select("a", "b", knob.number.alias("c")).distinct().collect()
                again = frame.where(F.col("a") != knob.number).count()
                _keep(folder, query, epoch, [*(list(row) for row in found), *([[-1, -1, again]] if again else [])])

            frame, mode = (both, "append") if query == "plain" else (both.groupBy("a", "b").count(), "update")
            job.start(query, frame.writeStream.outputMode(mode).foreachBatch(take))
            return job

        keep("plain")
        keep("counted")
        number = int(time.time() * 1000)
        while not (folder / "stop").exists():
            number += 1
            _note(folder, {"number": number})
            version = knob.set(number=number)
            uses = job._driver.live.facts("knob").uses
            later = {name: max(use.since, use.next_epoch or 0) for name, use in uses.items()}
            _note(folder, {"number": number, "version": version, "in_force": later})
            time.sleep(CHANGE_SECONDS)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
