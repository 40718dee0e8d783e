"""A real Spark script under bootstrap and supervisor: what it defines in `__main__` must reach the executors, and a
request to stop ends its job with a savepoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from coord_control.durable.checkpoints.metadata_file import decode_metadata
from coord_control.ids import QueryName
from tests.patience import SECONDS
from tests.spark.conftest import MakeStream
from tests.spark.jobs import MakeJob
from tests.spark.streams import FileStream

pytestmark = pytest.mark.spark

_CHECKOUT = Path(__file__).resolve().parents[2]
_FILES = 8

_SCRIPT = """
    from __future__ import annotations
    import json, os, threading, time
    from collections.abc import Iterator
    from pathlib import Path
    import pyarrow as pa
    from pydantic import BaseModel, field_validator
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F
    import coord_control as cc
    from coord_control.spark.process import shutdown

    class Inner(BaseModel):
        factor: int = 2

    class Model(BaseModel):
        value: int
        inner: Inner = Inner()

        @field_validator("value")
        @classmethod
        def not_negative(cls, value: int) -> int:
            if value < 0:
                raise ValueError("negative")
            return value

    def double(value: int) -> int:
        model = Model.model_validate({"value": value})
        return model.value * model.inner.factor

    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            values = [double(value) for value in batch.column("id").to_pylist()]
            yield pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], ["id"])

    spark = (
        SparkSession.builder.config("spark.ui.enabled", "false").config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    )
    rows = spark.range(0, 10, 1, 2).mapInArrow(each, "id long").collect()
    print("master", spark.sparkContext.master, "sum", sum(row.id for row in rows), flush=True)

    stopped = threading.Event()
    def stop(seconds: float) -> None:
        # Spark must still be usable while the driver stops: the JVM may not have got the signal.
        print("after the request", spark.range(0, 10, 1, 2).mapInArrow(each, "id long").count(), flush=True)
        stopped.set()
    shutdown.register(stop)

    has_declared = threading.Event()

    def into(frame, epoch):
        sums = {row["key"]: row["sum"] for row in frame.collect()}
        Path(f"sums-{epoch}.json").write_text(json.dumps(sums))
        if epoch == 2:
            has_declared.wait()
            print("ready", flush=True)
            while not shutdown.is_requested():
                time.sleep(0.01)

    options = {"metrics": "none", "control": "none", "on_stop": "savepoint"}
    with cc.Job("saved", spark, root=str(Path("jobs").resolve()), **options) as job:
        read = spark.readStream.schema("key STRING, value LONG").option("maxFilesPerTrigger", 1).json("source-1")
        sums = read.groupBy("key").agg(F.sum("value").alias("sum"))
        query = job.start("sums", sums.writeStream.outputMode("complete").foreachBatch(into))
        job.await_termination(0.0)  # all queries are started
        has_declared.set()
        query.awaitTermination()  # the end of Spark's run, which is before that of the job
    stopped.wait()
    spark.stop()
"""


def test_functions_of_the_script_reach_the_executors_and_a_request_to_stop_ends_its_job_with_a_savepoint(
    file_stream: MakeStream, make_job: MakeJob, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(_SCRIPT))
    source = file_stream()
    for number in range(_FILES):
        source.add([{"key": str(row % 3), "value": number * 10 + row} for row in range(10)])
    command = [sys.executable, "-m", "coord_control.cli", "run", "--grace", "10m", "--master", "local[2]", str(script)]
    environment = {**os.environ, "PYTHONPATH": str(_CHECKOUT)}
    with (tmp_path / "stderr").open("w") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=tmp_path, env=environment
        )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline(), process.stdout.readline()]
        descendants = psutil.Process(process.pid).children(recursive=True)
        names = [each.name() for each in descendants]
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate()
    finally:
        process.kill()
    errors_text = (tmp_path / "stderr").read_text()

    assert lines == ["master local[2] sum 90\n", "ready\n"], errors_text
    assert rest == "after the request 10\n"
    assert process.returncode == 143, errors_text
    assert any("java" in name for name in names)
    assert not any(_is_running(each) for each in descendants)
    _check_savepoint(tmp_path, source, make_job)


def _check_savepoint(folder: Path, source: FileStream, make_job: MakeJob) -> None:
    """The savepoint is the last that the driver did, and a job that is restored from it ends as one without a stop."""
    [saved] = (folder / "jobs" / "saved" / "savepoints").iterdir()
    found = decode_metadata(str(saved), (saved / "_metadata").read_bytes())
    last = found.queries[QueryName("sums")].epoch
    assert found.label == "stop-1"
    assert found.trigger.cause == "stop request"
    assert last == max(int(path.stem.removeprefix("sums-")) for path in folder.glob("sums-*.json"))
    assert 2 <= last < _FILES - 1

    sums: list[dict[str, int]] = []

    def into(frame: DataFrame, epoch: int) -> None:
        sums.append({row["key"]: row["sum"] for row in frame.collect()})

    job = make_job("saved", restore_from="stop-1")
    result = source.read().groupBy("key").agg(F.sum("value").alias("sum"))
    job.start("sums", result.writeStream.outputMode("complete").foreachBatch(into).trigger(availableNow=True))
    assert job.await_termination(SECONDS)
    values = [(row % 3, number * 10 + row) for number in range(_FILES) for row in range(10)]
    assert len(sums) == _FILES - 1 - last
    assert sums[-1] == {str(key): sum(value for each, value in values if each == key) for key in range(3)}


def _is_running(process: psutil.Process) -> bool:
    """An orphan that process 1 has not reaped yet does not run any more."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
