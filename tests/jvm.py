"""How the JVMs of the tests start: ``python -m tests.jvm`` makes the archive of classes that they share.

They live for seconds. Compiling their code well, and collecting their garbage in parallel, costs more than it gives;
and a third of their processor time would go into loading the same 20,000 classes, which a JVM can take from an archive
instead. The archive fits one Java and one installation of Spark; a JVM that it does not fit starts without it.

The class path has to be the one with which the archive was made. Spark's folder of settings is on it and has to be
empty, so the options travel in the environment.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Final

__all__ = ["ARCHIVE", "OPTIONS", "environment", "options"]

#: Of every JVM, with or without the archive.
OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" + (
    # Hadoop starts 50 processes (chmod, readlink) for each epoch of a query with state: this is the cheapest way.
    " -Djdk.lang.Process.launchMechanism=VFORK" if sys.platform == "linux" else ""
)

# The archive belongs to the Spark of this virtual environment.
_FOLDER: Final = Path(sys.prefix) / "spark-classes"
_SETTINGS: Final = _FOLDER / "no-settings"
ARCHIVE: Final = _FOLDER / "classes.jsa"
#: A JVM that the archive does not fit would say so on standard output.
_QUIET: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


def options() -> str:
    """Return the options of a JVM that runs Spark."""
    return f"{OPTIONS} -XX:SharedArchiveFile={ARCHIVE} {_QUIET}" if ARCHIVE.exists() else OPTIONS


def environment() -> dict[str, str]:
    """Return the environment in which Spark starts its JVMs with these options."""
    _SETTINGS.mkdir(parents=True, exist_ok=True)
    return {
        "SPARK_CONF_DIR": str(_SETTINGS),
        "SPARK_LAUNCHER_OPTS": OPTIONS,
        "SPARK_SUBMIT_OPTS": f'{options()} "-Dspark.executor.defaultJavaOptions={options()}"',
    }


def _make() -> None:
    """Run small queries in a JVM that writes the archive when it ends."""
    if ARCHIVE.exists():
        return
    _FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_FOLDER) as folder:
        made = Path(folder) / ARCHIVE.name
        os.environ |= environment() | {
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_SUBMIT_OPTS": f"{OPTIONS} {_QUIET} -XX:ArchiveClassesAtExit={made}",
        }
        _meet_classes(Path(folder))
        made.rename(ARCHIVE)


def _meet_classes(folder: Path) -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import count

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(folder),
    }
    builder = SparkSession.builder.master("local[2]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    (folder / "in").mkdir()
    for number in range(2):
        (folder / "in" / f"{number}.json").write_text('{"key": "a", "value": 1}\n{"key": "b", "value": 2}\n')
    schema = "key STRING, value LONG"
    source = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    queries = {
        "plain": source.repartition(2, "key").mapInArrow(lambda batches: batches, schema).writeStream,
        "stateful": source.groupBy("key").agg(count("*").alias("n")).writeStream.outputMode("complete"),
    }
    for name, writer in queries.items():
        sink = writer.queryName(name).format("parquet" if name == "plain" else "memory").trigger(availableNow=True)
        sink.option("path", str(folder / name)).option("checkpointLocation", str(folder / f"{name}-checkpoint"))
        sink.start().awaitTermination()
    spark.read.parquet(str(folder / "plain")).collect()
    jvm = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    spark.stop()
    jvm.stdin.close()  # it ends, and writes the archive
    jvm.wait()


if __name__ == "__main__":
    _make()
