"""What Spark's driver tells Python about queries and plans, and what it ships with a function.

Two of these facts are about the classes behind PySpark's public API, used because the public way costs a multiple; they
are the first to look at when a new release breaks something.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.patience import SECONDS
from tests.spark.conftest import MakeStream
from tests.spark.streams import (
    batch_ids,
    drain,
)
from tests.spark_session import CHECKOUT

pytestmark = pytest.mark.spark

ROWS = [{"key": f"key-{number % 4}", "value": number} for number in range(8)]


# --- progress --------------------------------------------------------------------------------------------------------


class RawListener:
    """Takes Spark's own event object; every method called on it is one round trip to the JVM."""

    def __init__(self, last: int, look: Callable[[str, int], object]) -> None:
        self.seen: list[object] = []
        self.done = threading.Event()
        self._last = last
        self._look = look

    def onQueryStarted(self, event: Any) -> None:
        """Nothing to do."""

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress()
        batch = progress.batchId()
        self.seen.append(self._look(progress.runId().toString(), batch))
        if batch == self._last:
            self.done.set()

    def onQueryIdle(self, event: Any) -> None:
        """Nothing to do."""

    def onQueryTerminated(self, event: Any) -> None:
        """Nothing to do."""

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


def test_a_listener_gets_the_raw_event_and_finds_the_commit_file_written(
    spark: SparkSession, file_stream: MakeStream, checkpoint: Path
) -> None:
    """Fact 7: the commit file precedes its progress event; and a listener need not build the whole progress object."""
    stream = file_stream()
    for _ in range(4):
        stream.add(ROWS)
    listener = RawListener(3, lambda run, batch: (run, batch, batch in batch_ids(checkpoint, "commits")))
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    wrapper = gateway.jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(listener)
    manager = spark._jsparkSession.streams()
    before = len(manager.listListeners())
    manager.addListener(wrapper)
    try:
        query = drain(stream.read().writeStream.format("noop").option("checkpointLocation", str(checkpoint)))
        assert listener.done.wait(SECONDS)
    finally:
        manager.removeListener(wrapper)
    assert listener.seen == [(str(query.runId), batch, True) for batch in range(4)]
    assert len(manager.listListeners()) == before


# --- plans -----------------------------------------------------------------------------------------------------------


def passing(frame: DataFrame, name: str) -> DataFrame:
    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    function.__name__ = name
    return frame.mapInArrow(function, frame.schema)


def functions_in(writer: DataStreamWriter) -> set[str]:
    """Name the functions of all mapInArrow steps below a writer."""
    names = set()
    pending = [writer._df._jdf.queryExecution().analyzed()]
    while pending:
        node = pending.pop()
        if node.nodeName() == "MapInArrow":
            names.add(node.functionExpr().name())
        children = node.children()
        pending.extend(children.apply(index) for index in range(children.size()))
    return names


def test_the_names_of_the_functions_in_a_plan_can_be_read_from_its_writer(
    own_session: SparkSession, file_stream: MakeStream
) -> None:
    """A query's operators are found before it starts: through union, join, aggregation, views and SQL."""
    stream = file_stream(session=own_session)
    lower = passing(stream.read(), "lower")
    passing(lower.where("value > 0"), "upper").createOrReplaceTempView("viewed")
    joined = passing(own_session.range(3).selectExpr("concat('key-', id) AS key"), "static")
    frame = own_session.sql("WITH it AS (SELECT * FROM viewed) SELECT key, value FROM it")
    frame = frame.union(passing(stream.read(), "right")).join(joined, "key")
    frame = frame.groupBy("key").agg(F.sum("value").alias("value"))
    assert functions_in(passing(frame, "top").writeStream) == {"lower", "upper", "static", "right", "top"}
    assert functions_in(stream.read().writeStream) == set()


# --- what travels with a function ------------------------------------------------------------------------------------

SCRIPT = """
    from pydantic import BaseModel, ValidationError, field_validator
    from pyspark.sql import SparkSession

    class Threshold(BaseModel):
        minutes: float

        @field_validator("minutes")
        @classmethod
        def not_negative(cls, value):
            if value < 0:
                raise ValueError("must not be negative")
            return value

    class Nested(BaseModel):
        inner: list[Threshold] = [Threshold(minutes=1.5)]

    def use(batches):
        for batch in batches:
            try:
                Threshold.model_validate_json('{"minutes": -1}')
            except ValidationError as error:
                print(error)  # keeps stdout of the worker in play: it must not disturb the protocol
                text = Nested().model_dump_json() + "|" + error.errors()[0]["msg"] + "|" + Threshold.__module__
            yield batch.from_pydict({"text": [text]})

    if __name__ == "__main__":
        spark = (
            SparkSession.builder.master("local[1]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .getOrCreate()
        )
        print("RESULT", spark.range(1).mapInArrow(use, "text string").head().text)
        spark.stop()
"""


# In every run: test_driver_script.py, which starts a driver for more than this.
@pytest.mark.slow
def test_pydantic_models_of_the_driver_script_travel_with_the_function_that_uses_them(tmp_path: Path) -> None:
    """Models defined in __main__ arrive in the Python worker with fields, defaults and validators."""
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(SCRIPT))
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    expected = 'RESULT {"inner":[{"minutes":1.5}]}|Value error, must not be negative|__main__'
    assert results == [expected], done.stderr
