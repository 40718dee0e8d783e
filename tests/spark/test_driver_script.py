"""A real Spark script under bootstrap and supervisor: what it defines in `__main__` must reach the executors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.spark

_CHECKOUT = Path(__file__).resolve().parents[2]

_SCRIPT = """
    from __future__ import annotations
    import os, threading
    from collections.abc import Iterator
    import pyarrow as pa
    from pydantic import BaseModel, field_validator
    from pyspark.sql import SparkSession
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
        .config("spark.driver.host", "127.0.0.1").getOrCreate()
    )
    rows = spark.range(0, 10, 1, 2).mapInArrow(each, "id long").collect()
    print("master", spark.sparkContext.master, "sum", sum(row.id for row in rows), flush=True)

    stopped = threading.Event()
    def stop(seconds: float) -> None:
        # Spark must still be usable while the driver stops: the JVM may not have got the signal.
        print("after the request", spark.range(0, 10, 1, 2).mapInArrow(each, "id long").count(), flush=True)
        stopped.set()
    shutdown.register(stop)
    print("ready", flush=True)
    stopped.wait()
    spark.stop()
"""


def test_models_and_functions_of_the_script_reach_the_executors_and_spark_outlives_the_request_to_stop(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(_SCRIPT))
    command = [sys.executable, "-m", "coord_control.cli", "run", "--master", "local[2]", str(script)]
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


def _is_running(process: psutil.Process) -> bool:
    """An orphan that process 1 has not reaped yet does not run any more."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
