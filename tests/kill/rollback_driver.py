"""A driver that restores its job with its sinks: `python rollback_driver.py FOLDER RELEASE [REF]`.

One plain query copies FOLDER/in, a file per epoch, with Spark's file sink to FOLDER/out, and marks each row with the
release. The log of the sink is compacted at every third epoch, and what is older is removed at once. The driver stops
where it is asked to (`pausing.py`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import coord_control as cc
from tests.kill.pausing import pause_if_asked
from tests.patience import SECONDS

__all__ = ["SETTINGS", "copy_rows"]

SETTINGS: Final = {
    "spark.sql.streaming.fileSink.log.compactInterval": "3",
    "spark.sql.streaming.fileSink.log.cleanupDelay": "0",
    "spark.sql.streaming.minBatchesToRetain": "5",
}


def copy_rows(session: SparkSession, folder: Path, release: str, restore: str | None = None) -> str:
    """Process all that is there, and return a savepoint of it."""
    root = str(folder / "jobs")
    with cc.Job("copying", session, root=root, restore_from=restore, roll_back_sinks=True) as job:
        rows = session.readStream.schema("n LONG").option("maxFilesPerTrigger", 1).json(str(folder / "in"))
        marked = rows.withColumn("release", F.lit(release))
        writer = marked.writeStream.format("parquet").option("path", str(folder / "out"))
        job.start("copy", writer.trigger(availableNow=True))
        assert job.await_termination(SECONDS)
        return job.trigger_savepoint().wait(SECONDS).path


def main() -> None:
    folder, release, restore = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    pause_if_asked(folder)
    copy_rows(session, folder, release, restore)


if __name__ == "__main__":
    main()
